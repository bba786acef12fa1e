"""The same function, and more rounding error on one side: which loss of precision has these sizes?

Rounding errors cannot be predicted one by one, so nothing is proved: the side's errors against float64, tap by tap and
parameter by parameter, are compared in size with those of the reference ViT that loses precision in one place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf, log

from torch import Tensor

from vitconv.errors import VitconvError
from vitconv.parity.explain import Cause, rebuilt_config
from vitconv.parity.faults import FAULTS
from vitconv.parity.faults.error import Item, Left, distances, items
from vitconv.parity.faults.fault import Knobs
from vitconv.parity.faults.rebuild import Rebuilt
from vitconv.parity.pair import PROBE, Pair
from vitconv.parity.precision import precision_of, running
from vitconv.parity.probe import RESIZED
from vitconv.parity.tolerance import K_PARAMETER, K_TAP, ROUNDINGS
from vitconv.parity.trace import cotangent_of
from vitconv.vit.config import ViTConfig
from vitconv.vit.model import ViT

# Sizes agree when the logarithms of their ratios, over all items, have a root mean square below this: correct code is
# at 0.1 to 0.25, the sizes of two different losses of precision part by 0.5 and more.
ALIKE = 0.35
# A second fault is as good when it is no worse than this many times the best.
CLOSE = 1.3

_SITES = ("norm-in", "residual-in", "softmax-in", "weights", "matrices", "images")
LOSSES = ("tf32", *(f"{site}-{short}" for short in ("fp16", "bf16") for site in _SITES))


def explain_numerics(pair: Pair, precision: str, of: str = PROBE) -> Cause:
    """Name the loss of precision that gives side B's errors, where those are larger than side A's.

    Args:
        pair: the sides on the bench; A is the baseline.
        precision: the one in which they part.
        of: which weights.
    """
    try:
        config = rebuilt_config(pair.a, pair.b)
    except VitconvError as e:
        return Cause(reason=f"side A cannot be rebuilt as the reference ViT: {e}", proven=False)
    # The reference ViT runs at its own size.
    names = [n for n in pair.images if n != RESIZED]
    right64 = [pair.run(pair.a, n, "fp64", of) for n in names]
    right = [_errors([pair.run(pair.a, n, precision, of, saved=False) for n in names], right64)]
    wrong = _errors([pair.run(pair.b, n, precision, of, saved=False) for n in names], right64)
    images = [pair.images[n] for n in names]
    ratio = max((wrong[i] / right[0][i] for i in wrong if right[0].get(i)), default=1.0)
    return match_losses(config, pair.weights(pair.a, of), images, precision, wrong, ratio, pair.seed)


def match_losses(
    config: ViTConfig,
    weights: Mapping[str, Tensor],
    images: Sequence[Tensor],
    precision: str,
    wrong: Mapping[Item, float],
    ratio: float,
    seed: int = 0,
) -> Cause:
    """Compare the sizes of errors `wrong` with those of every loss of precision; see `explain_numerics`.

    Args:
        config: the reference ViT that is right.
        weights: its canonical weights.
        images: the inputs the errors are pooled over.
        precision: what everything runs in.
        wrong: {item: root mean square error against float64}.
        ratio: the largest of these over the baseline's, for the report.
        seed: of the cotangent.
    """
    templates: dict[str, ViT] = {}
    weights = {name: w.detach().double().cpu() for name, w in weights.items()}
    exact = Rebuilt(Knobs(config), weights, templates=templates)
    images = [x.cpu() for x in images]
    cotangents = [cotangent_of(exact.run(x).output.shape, seed) for x in images]
    plain = [exact.run(x, c) for x, c in zip(images, cotangents, strict=True)]

    def errors(knobs: Knobs) -> dict[Item, float]:
        dtype = precision_of(precision).dtype
        with running(precision, "cpu") as mode:
            lossy = Rebuilt(knobs, weights, templates=templates, dtype=dtype)
            with mode.forward():
                runs = [lossy.run(x, c) for x, c in zip(images, cotangents, strict=True)]
        return _errors(runs, plain)

    least = {
        item: ROUNDINGS
        * precision_of(precision).unit
        * sum(float(dict(items(r))[item].norm()) ** 2 for r in plain) ** 0.5
        for item, _ in items(plain[0])
    }
    none = errors(Knobs(config))
    scores = {"": _apart(none, wrong, least)}
    for name in LOSSES:
        knobs = FAULTS[name].apply(Knobs(config))
        if knobs is not None:
            scores[name] = _apart(errors(knobs), wrong, least)
    ranked = sorted((n for n in scores if n), key=lambda n: scores[n])
    best = ranked[0]
    tried = tuple(ranked)
    if scores[""] <= ALIKE or scores[best] > ALIKE or scores[best] * CLOSE > scores[""]:
        reason = "no loss of precision of the catalogue has errors of these sizes"
        return Cause(before=ratio, after=ratio, excluded=tried, reason=reason, proven=False)
    alike = [n for n in ranked if scores[n] <= CLOSE * scores[best]]
    return Cause(
        found=(best,),
        before=ratio,
        after=_largest(errors_ratio(wrong, none, least)),
        excluded=tuple(n for n in tried if n not in alike),
        rounds=1,
        others=tuple((n,) for n in alike[1:]),
        side="B",
        titles=(FAULTS[best].title,),
        reason=f"side B's errors have the sizes of this: {FAULTS[best].title}; nothing is proved by that",
        proven=False,
    )


def errors_ratio(
    one: Mapping[Item, float], two: Mapping[Item, float], least: Mapping[Item, float]
) -> dict[Item, float]:
    """Return error over error, neither less than what a rounding or so gives."""
    return {
        i: max(e, least[i]) / max(two[i], least[i]) for i, e in one.items() if i in two and i in least and least[i] > 0
    }


def exceeds(wrong: Mapping[Item, float], right: Mapping[Item, float], least: Mapping[Item, float]) -> bool:
    """Return whether some error is larger than the other side's allows."""
    k = {"tap": K_TAP, "output": K_TAP, "tap-grad": K_PARAMETER, "grad": K_PARAMETER}
    return any(r > k[item[0]] for item, r in errors_ratio(wrong, right, least).items())


def _errors(runs: Sequence[Left], exact: Sequence[Left]) -> dict[Item, float]:
    """Return the error of each item, pooled over inputs: the root of the sum of squares."""
    squares: dict[Item, float] = {}
    for run, right in zip(runs, exact, strict=True):
        for item, d in distances(run, right).items():
            squares[item] = squares.get(item, 0.0) + d * d
    return {item: s**0.5 for item, s in squares.items()}


def _apart(one: Mapping[Item, float], two: Mapping[Item, float], least: Mapping[Item, float]) -> float:
    found = [log(r) if 0 < r < inf else 99.0 for r in errors_ratio(one, two, least).values()]
    return (sum(x * x for x in found) / max(len(found), 1)) ** 0.5


def _largest(found: Mapping[Item, float]) -> float:
    return max(found.values(), default=1.0)
