"""In which precisions a side runs at all: some kernels know half precision alone."""

from __future__ import annotations

from vitconv.errors import Refused
from vitconv.parity.pair import PROBE, CannotRun, Pair
from vitconv.parity.precision import precision_of
from vitconv.parity.side import Side
from vitconv.parity.tolerance import LOSS_SCALE_MIN

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
