"""What is summed up over two tensors that are compared: each is read once, some elements at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass
class Figures:
    """What is summed up over a and b, some elements at a time: ||a - b||, ||a||, ||b||, the largest, and the sum."""

    error: float = 0.0
    size: float = 0.0
    other: float = 0.0
    max_abs: float = 0.0
    max_rel: float = 0.0
    min_tolerance: float = 0.0
    total: float = 0.0

    @property
    def cosine(self) -> float:
        """The cosine of the angle, 1 when both are zero; by the law of cosines, the three lengths being known."""
        if self.size == self.other == 0:
            return 1.0
        if not self.size or not self.other:
            return 0.0
        a, b, d = self.size, self.other, self.error
        return a / b / 2 + b / a / 2 - d / a * (d / b) / 2


# Elements that are looked at together: what is made of them stays in the processor's cache.
AT_ONCE = 1 << 17
# A ratio near the end of float32's range is computed again.
_FAR = 1e30


class Memory:
    """Memory for what is made of the elements that are looked at together: the same for all, so it is in the cache."""

    def __init__(self) -> None:
        self.apart = torch.empty(AT_ONCE, dtype=torch.float64)
        self.small = torch.empty(4, AT_ONCE, dtype=torch.float32)


def figures_of(a: Tensor, others: Sequence[Tensor], memory: Memory, *, elementwise: bool) -> list[Figures]:
    """Return the figures of a against each of the others: all of [n], floating, on the CPU.

    `elementwise`: whether `max_rel` and `min_tolerance` are wanted; else they are NaN where there is a difference.
    """
    found = [Figures() for _ in others]
    for left, *rights in zip(a.split(AT_ONCE), *(b.split(AT_ONCE) for b in others), strict=True):
        x, scales = left.double(), None
        size = _length(x)
        for right, out in zip(rights, found, strict=True):
            y = right.double()
            out.size = math.hypot(out.size, size)
            if torch.equal(x, y):
                out.other = math.hypot(out.other, size)
                continue
            out.other = math.hypot(out.other, _length(y))
            d = torch.sub(y, x, out=memory.apart[: len(x)])
            low, high = torch.aminmax(d)
            out.max_abs = max(out.max_abs, float(high), -float(low))
            out.total += float(d.sum())
            out.error = math.hypot(out.error, _length(d))
            if not elementwise:
                continue
            small = memory.small[:, : len(x)]
            scales = scales or _scales(x, small[:2])
            largest = _largest(d, *scales, small[2:])
            if not all(0 < f < _FAR for f in largest):
                # Out of float32's range, or a difference from zero.
                wide = torch.empty(4, len(x), dtype=torch.float64)
                largest = _largest(d, *_scales(x, wide[:2]), wide[2:])
            out.max_rel, out.min_tolerance = max(out.max_rel, largest[0]), max(out.min_tolerance, largest[1])
    if elementwise:
        return found
    return [replace(f, max_rel=math.nan, min_tolerance=math.nan) if f.max_abs else f for f in found]


def _scales(x: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
    """Return |x|, which is not zero, and 1 + |x|, in the memory and its dtype."""
    size, above = memory
    torch.add(size.copy_(x).abs_(), 1, out=above)
    return size.clamp_min_(torch.finfo(size.dtype).tiny), above


def _largest(d: Tensor, size: Tensor, above: Tensor, memory: Tensor) -> tuple[float, float]:
    """Return the largest of |d| / |x| and of |d| / (1 + |x|), in the memory's dtype: they decide nothing."""
    own, ratio = memory
    own.copy_(d).abs_()
    return float(torch.div(own, size, out=ratio).max()), float(torch.div(own, above, out=ratio).max())


def _length(x: Tensor) -> float:
    square = float(x @ x)
    # Small numbers are squared to zero, and large ones to infinity.
    return square**0.5 if math.isfinite(square) else norm(x)


def distance(a: Tensor, b: Tensor, memory: Memory) -> float:
    """Return ||a - b||, infinite where it is no number; both of [n], floating, on the CPU."""
    found = 0.0
    for x, y in zip(a.split(AT_ONCE), b.split(AT_ONCE), strict=True):
        found = math.hypot(found, _length(torch.sub(x.double(), y, out=memory.apart[: len(x)])))
    return found if math.isfinite(found) else math.inf


def norm(x: Tensor) -> float:
    """Return ||x|| of a float64 tensor of any shape, also where the squares overflow."""
    found = float(torch.linalg.vector_norm(x))
    if found == math.inf and math.isfinite(largest := float(x.abs().max())):
        # The squares overflowed: as infinite, the size would make any difference small.
        return largest * float(torch.linalg.vector_norm(x / largest))
    return found
