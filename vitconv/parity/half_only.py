"""A side that does not run in float64: which faults can be told below its rounding errors, and which can not."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from torch import Tensor

from vitconv.errors import VitconvError
from vitconv.parity.explain import Cause, rebuilt_config
from vitconv.parity.faults.error import exact_scale, ratios
from vitconv.parity.faults.fault import Knobs
from vitconv.parity.faults.rebuild import Rebuilt
from vitconv.parity.pair import PROBE, Pair
from vitconv.parity.probe import probe_images
from vitconv.parity.regress import LEAST_INPUTS, regress_deeper
from vitconv.parity.trace import Trace
from vitconv.vit.config import ViTConfig

# So many inputs are pooled: a fault of a hundredth of the rounding error needs some 24, and each costs a pass of the
# whole network per fault of the catalogue.
MOST_INPUTS = 24
# Multiplications in projections of the block's width, all inputs together, that may go into one fault.
WORK = 2e9


def explain_half(pair: Pair, precision: str, of: str = PROBE) -> Cause:
    """Regress side B's difference from side A on what every fault would change, pooled over inputs.

    Nothing is proved by that. What could not be told from the rounding error is in `undetectable`.

    Args:
        pair: the sides; A runs in float64.
        precision: one that B runs in.
        of: which weights.
    """
    try:
        config = rebuilt_config(pair.a, pair.b)
    except VitconvError as e:
        return Cause(reason=f"side A cannot be rebuilt as the reference ViT: {e}", proven=False, unsound=True)
    weights = pair.weights(pair.a, of)
    images = pooled_images(pair, config)
    wrong = _is_not(pair, config, weights, of)
    if wrong:
        return Cause(reason=wrong, proven=False, unsound=True)

    def runs(label: str) -> list[Trace]:
        side = pair.side(label)
        first = next(iter(pair.images))
        made = [pair.run(side, first, precision, of, backward=False, images=x) for x in images]
        return [_on_cpu(t) for t in made]

    found = regress_deeper(config, weights, images, runs(pair.a.label), runs(pair.b.label))
    cause = found.cause()
    more = f"; {len(found.undetectable)} faults could not be told from the rounding error" if found.undetectable else ""
    said = f"over {len(images)} inputs in {precision}, " + cause.reason + more
    return dataclasses.replace(cause, side=pair.b.label if cause.found else "", reason=said)


def pooled_images(pair: Pair, config: ViTConfig) -> list[Tensor]:
    """Return coloured probe images of many seeds: fewer of a large network, never too few."""
    one = config.width**2 * (config.positions + config.prefix) * config.depth * 12
    count = int(min(MOST_INPUTS, max(LEAST_INPUTS, WORK / max(one, 1))))
    inputs = pair.a.built.inputs
    return [probe_images(inputs, pair.seed + j)["coloured"] for j in range(count)]


def _is_not(pair: Pair, config: ViTConfig, weights: Mapping[str, Tensor], of: str) -> str:
    """Return why the reference ViT is not side A, or ""."""
    inputs = next(iter(pair.images))
    right = _on_cpu(pair.run(pair.a, inputs, "fp64", of))
    seen = Rebuilt(Knobs(config), weights, backward=False).run(pair.images[inputs])
    found = ratios(seen, dataclasses.replace(right, grads={}, tap_grads={}), exact_scale(right))
    worst = max(found.values(), default=0.0)
    return "" if worst <= 1 else "the reference ViT is not side A with the facts it shows"


def _on_cpu(t: Trace) -> Trace:
    return dataclasses.replace(t, taps={n: x.cpu() for n, x in t.taps.items()}, output=t.output.cpu())


def limits_told(names: Sequence[str], shown: int = 12) -> str:
    """Return the detection limit in a line."""
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return f"could not be excluded at this noise: {', '.join(names[:shown])}{more}" if names else ""
