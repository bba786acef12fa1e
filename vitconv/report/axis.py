"""Axes of a chart: a range that holds the values, ticks as a person would choose them, places of values."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True, slots=True)
class Axis:
    """A range, linear or logarithmic, with its ticks in the range and how they are written."""

    low: float
    high: float
    log: bool
    ticks: tuple[float, ...]
    labels: tuple[str, ...]

    def place(self, value: float) -> float:
        """Return where the value falls, from 0 at the low end to 1 at the high one, never outside."""
        if self.log:
            value = math.log10(max(value, self.low))
            low, high = math.log10(self.low), math.log10(self.high)
        else:
            low, high = self.low, self.high
        return min(1.0, max(0.0, (value - low) / (high - low)))


def log_axis(values: Iterable[float], *, most: int = 7) -> Axis:
    """Return whole decades around the positive finite values, with at most `most` ticks."""
    shown = [value for value in values if math.isfinite(value) and value > 0]
    low = math.floor(math.log10(min(shown))) if shown else 0
    high = math.ceil(math.log10(max(shown))) if shown else 1
    high = max(high, low + 1)
    step = math.ceil((high - low) / (most - 1))
    powers = range(low, high + 1, step)
    return Axis(
        low=10.0**low,
        high=10.0**high,
        log=True,
        ticks=tuple(10.0**power for power in powers),
        labels=tuple(f"1e{power}" if abs(power) > 2 else f"{10.0**power:g}" for power in powers),
    )


def linear_axis(values: Iterable[float], *, most: int = 6) -> Axis:
    """Return a range around the finite values with ticks at 1, 2, 2.5 or 5 times a power of ten."""
    shown = [value for value in values if math.isfinite(value)]
    low, high = (min(shown), max(shown)) if shown else (0.0, 1.0)
    if low == high:
        low, high = low - 0.5, high + 0.5
    rough = (high - low) / (most - 1)
    scale = 10.0 ** math.floor(math.log10(rough))
    step = next(scale * step for step in _STEPS if scale * step >= rough * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = tuple(k * step for k in range(first, last + 1))
    return Axis(low=ticks[0], high=ticks[-1], log=False, ticks=ticks, labels=tuple(f"{tick:g}" for tick in ticks))
