"""The regression over many inputs on saved traces: no network of the sides is needed, only the reference ViT."""

from __future__ import annotations

import torch

from vitconv.errors import Refused
from vitconv.parity.explain import Cause, config_of
from vitconv.parity.half_only import POOLED, is_not, regressed
from vitconv.parity.run import Run


def regress_runs(a: tuple[Run, str], b: tuple[Run, str]) -> Cause:
    """Regress the difference of two saved sides on what every fault would change, as a live run does.

    Raises:
        Refused: the runs do not hold what that takes, or other inputs, or other weights.
        BadFile: a file of them is damaged.
    """
    (run_a, label_a), (run_b, label_b) = a, b
    held = [{key[1:] for key in run.listed() if key[0] == label and key[3].startswith(POOLED)} for run, label in (a, b)]
    both = sorted(held[0] & held[1], key=lambda key: int(key[2].removeprefix(POOLED)))
    if not both or label_a != "A" or held[0] != held[1]:
        raise Refused(
            "the traces of many inputs that it takes are not in the runs; --save keeps them where the function is not "
            "compared in float64, unless why is left out"
        )
    precision, of, _ = both[0]
    images, weights = run_a.pooled()
    if run_b is not run_a:
        others, carried = run_b.pooled()
        for name, mine, theirs in (("inputs", images, others), ("weights", weights, carried)):
            if mine.keys() != theirs.keys() or any(not torch.equal(mine[n], theirs[n]) for n in mine):
                raise Refused(f"the runs have other {name}")
    tensors = run_a.document["sides"][label_a]["tensors"]
    shapes = {name: tuple(shape) for name, (_, shape, _) in tensors.items()}
    config = config_of(shapes, run_a.facts(label_a), run_b.facts(label_b))
    first = next(n for n in images if not n.startswith(POOLED))
    wrong = is_not(config, weights, images[first], run_a.trace(label_a, "fp64", of, first))
    if wrong:
        return Cause(reason=wrong, proven=False, unsound=True)
    names = [inputs for _, _, inputs in both]
    right, other = ([run.trace(label, precision, of, n) for n in names] for run, label in (a, b))
    return regressed(config, weights, [images[n] for n in names], right, other, precision, "B")
