"""Solve for the number of a fault that has one: a factor, an eps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import isfinite
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from vitconv.parity.faults import FAULTS
from vitconv.parity.locus import Combination, Locus, Placed
from vitconv.vit.config import ViTConfig

if TYPE_CHECKING:
    from vitconv.parity.search import Search

# Newton's method on one number converges in a handful of steps or does not belong there.
STEPS, LEAST_GAIN = 15, 0.8
# Where a whole step goes too far, a part of it may not.
PARTS = (1.0, 0.5, 0.2)
# A number this near to the root of a width is that root.
MEANT = 1e-8
Left = Callable[[float], Tensor | None]


def solved(search: Search, base: Combination, locus: Locus) -> Iterator[Combination]:
    """Yield the combinations with a fault more, of a number that takes the difference at the locus away.

    In float64 and forward only: rounding errors would fit any number.
    """
    if search.dtype != torch.float64 or locus.phase != "forward" or not isinstance(search.config, ViTConfig):
        return
    layer = None if locus.layer is None else (locus.layer,)
    for name in search.catalogue:
        fault = FAULTS[name]
        if fault.number is None or not locus.kinds & {*fault.shows}:
            continue
        alone = Placed(name, layer if fault.per_block else None)
        if search.knobs((*base, alone)) is None:
            continue
        search.tried.setdefault(name)
        number = _number(search, base, alone, locus)
        if number is not None:
            for scope in search.scopes(fault, locus):
                yield (*base, Placed(name, scope, number))


def _number(search: Search, base: Combination, fault: Placed, locus: Locus) -> float | None:
    """Return the number that gives the value at the locus, by Newton's method from the fault's starts, or None."""
    sample, scale = search.samples[locus.sample], search.scales[locus.sample]
    item = ("output", "output") if locus.tap == "output" else ("tap", locus.tap)
    seen = (sample.seen.output if locus.tap == "output" else sample.seen.taps[locus.tap]).double()

    def left(number: float) -> Tensor | None:
        value = search.value((*base, Placed(fault.name, fault.layers, number)), locus)
        return None if value is None or value.shape != seen.shape else (seen - value).flatten()

    start, nonlinear = fault.fault.start, fault.fault.site in ("norm", "attention")
    roots = [w**p for w in (search.config.width, search.config.head_width) for p in (0.5, -0.5)]
    for first in (start, *(roots if nonlinear and start == 1.0 else ())):
        found = _newton(left, first, scale.allowed[item], positive=start < 1.0)
        if found is not None:
            return next((r for r in roots if abs(found - r) <= MEANT * r), found)
    return None


def _newton(left: Left, x: float, allowed: float, *, positive: bool) -> float | None:
    """Return the number at which `left` is as good as zero, from `x` on, as near as steps bring it; or None."""
    r = left(x)
    for _ in range(STEPS):
        if r is None:
            return None
        size, step = float(r.norm()), 1e-5 * x
        moved = left(x + step)
        slope = None if moved is None else (r - moved) / step
        length = 0.0 if slope is None else float(slope.square().sum())
        if slope is None or not isfinite(length) or length == 0:
            return None
        whole = float((slope * r).sum()) / length
        for part in PARTS:
            new = x + part * whole
            new = x / 10 if positive and new <= 0 else new
            after = left(new)
            if after is not None and float(after.norm()) <= LEAST_GAIN * size:
                break
            if size <= allowed:
                return x
        else:
            return None
        x, r = new, after
    return x if r is not None and float(r.norm()) <= allowed else None
