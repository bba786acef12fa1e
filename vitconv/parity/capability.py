"""In which precisions a side runs at all: some kernels know half precision alone."""

from __future__ import annotations

import torch

from vitconv.errors import Refused
from vitconv.parity.compare import rms
from vitconv.parity.pair import PROBE, CannotRun, Pair
from vitconv.parity.precision import precision_of
from vitconv.parity.side import Side
from vitconv.parity.tolerance import LOSS_SCALE_MIN, NUDGED, ROUNDED, SAME_FUNCTION

# From the finest on; under autocast more runs than in half precision throughout.
_ORDER = ("fp64", "fp32", "amp-fp16", "amp-bf16", "fp16", "bf16")


def finest(pair: Pair, side: Side) -> tuple[str, str]:
    """Return the finest precision that a side runs in, forward and backward, and what float64 ended with ("": it runs).

    Raises:
        Refused: it runs in none.
    """
    if side.label not in pair.finest:
        pair.finest[side.label] = _tried(pair, side)
    return pair.finest[side.label]


def rounds_inside(pair: Pair, side: Side, inputs: str, of: str) -> str:
    """Say where a side that takes float64 computes in float32 all the same, as a kernel does; "" where it does not.

    The images are moved twice by the same small step. What is computed in float64 moves twice as far the second time;
    what is rounded to float32 on the way moves in steps of its own, or not at all.
    """
    images = pair.images[inputs]
    generator = torch.Generator().manual_seed(pair.seed)
    step = torch.randn(images.shape, generator=generator, dtype=torch.float64).to(images) * rms(images) * NUDGED
    start = pair.run(side, inputs, "fp64", of, saved=False)
    once, again = (pair.run(side, inputs, "fp64", of, images=images + k * step, saved=False) for k in (1, 2))
    found: dict[str, float] = {}
    for kind in ("taps", "tap_grads", "grads"):
        for name, x in getattr(start, kind).items():
            y, z = (getattr(t, kind)[name].double() for t in (once, again))
            size = float(torch.linalg.vector_norm(x.double()))
            bend = float(torch.linalg.vector_norm(z - 2 * y + x.double())) / size if size else 0.0
            if SAME_FUNCTION < bend < ROUNDED:
                found.setdefault(f"the gradient at {name}" if kind == "tap_grads" else name, bend)
    if not found:
        return ""
    name, bend = next(iter(found.items()))
    return f"it takes float64 and rounds inside as float32 does, first at {name} (by {bend:.1g} of its size)"


def scale_of(precision: str) -> float:
    """Return the loss scale of a run whose gradients are only to be there: that of half precision keeps them from 0."""
    p = precision_of(precision)
    return LOSS_SCALE_MIN if "torch.float16" in (str(p.dtype), str(p.autocast)) else 1.0


def _tried(pair: Pair, side: Side) -> tuple[str, str]:
    first, said = next(iter(pair.images)), ""
    for precision in _ORDER:
        try:
            pair.run(side, first, precision, PROBE, loss_scale=scale_of(precision), saved=precision == "fp64")
        except CannotRun as e:
            said = said or e.said
        else:
            return precision, said
    raise Refused(f"{side.label} ({side.spec}) does not run: {said}")
