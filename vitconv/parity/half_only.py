"""A side that does not run in float64: which faults can be told below its rounding errors, and which can not."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from math import prod

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
# How the inputs of a regression are called, with a number behind.
POOLED = "pooled-"
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
    first = next(iter(pair.images))
    exact = pair.run(pair.a, first, "fp64", of)
    images = pooled_images(pair, _count(pair, exact))

    def runs(label: str) -> list[Trace]:
        side, made = pair.side(label), []
        for j, x in enumerate(images):
            t = pair.run(side, first, precision, of, backward=False, images=x)
            made.append(_on_cpu(dataclasses.replace(t, inputs=f"{POOLED}{j}")))
            if pair.sink is not None:
                pair.sink(made[-1], of)
        return made

    # What is saved may be held against another run, whose side can be rebuilt.
    made = [] if pair.sink is None else [runs(side.label) for side in (pair.a, pair.b)]
    try:
        config = rebuilt_config(pair.a, pair.b)
    except VitconvError as e:
        return Cause(reason=f"side A cannot be rebuilt as the reference ViT: {e}", proven=False, unsound=True)
    weights = pair.weights(pair.a, of)
    wrong = is_not(config, weights, pair.images[first], exact)
    if wrong:
        return Cause(reason=wrong, proven=False, unsound=True)
    right, other = made or [runs(side.label) for side in (pair.a, pair.b)]
    return regressed(config, weights, images, right, other, precision, pair.b.label)


def regressed(
    config: ViTConfig,
    weights: Mapping[str, Tensor],
    images: Sequence[Tensor],
    right: Sequence[Trace],
    wrong: Sequence[Trace],
    precision: str,
    label: str,
) -> Cause:
    """Regress the difference of two sides' traces over many inputs on what every fault would change.

    Args:
        config: the reference ViT that computes what the right side does; see `is_not`.
        weights: its canonical weights.
        images: the inputs.
        right: the right side's traces of them, in the precision.
        wrong: the other's.
        precision: of the traces.
        label: of the other side.
    """
    found = regress_deeper(config, weights, images, right, wrong)
    cause = found.cause()
    more = f"; {len(found.undetectable)} faults could not be told from the rounding error" if found.undetectable else ""
    said = f"over {len(images)} inputs in {precision}, " + cause.reason + more
    return dataclasses.replace(cause, side=label if cause.found else "", reason=said)


def _count(pair: Pair, run: Trace) -> int:
    """Return how many inputs to pool: fewer of a large network, never too few."""
    tokens = max((x.shape[1] for x in run.taps.values() if x.dim() == 3), default=1)
    one = tokens * sum(prod(shape) for name, shape in pair.a.shapes.items() if name.startswith("blocks."))
    return int(min(MOST_INPUTS, max(LEAST_INPUTS, WORK / max(one, 1))))


def pooled_images(pair: Pair, count: int) -> list[Tensor]:
    """Return coloured probe images of many seeds."""
    inputs = pair.a.built.inputs
    return [probe_images(inputs, pair.seed + j)["coloured"] for j in range(count)]


def is_not(config: ViTConfig, weights: Mapping[str, Tensor], images: Tensor, right: Trace) -> str:
    """Return why the reference ViT is not the side that left this float64 trace, or ""."""
    right = _on_cpu(right)
    seen = Rebuilt(Knobs(config), weights, backward=False).run(images.cpu())
    found = ratios(seen, dataclasses.replace(right, grads={}, tap_grads={}), exact_scale(right))
    worst = max(found.values(), default=0.0)
    return "" if worst <= 1 else "the reference ViT is not side A with the facts it shows"


def _on_cpu(t: Trace) -> Trace:
    return dataclasses.replace(t, taps={n: x.cpu() for n, x in t.taps.items()}, output=t.output.cpu())


def limits_told(names: Sequence[str], shown: int = 12) -> str:
    """Return the detection limit in a line."""
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return f"could not be excluded at this noise: {', '.join(names[:shown])}{more}" if names else ""
