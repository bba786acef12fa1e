"""How far a rebuilt run is from what a network did, in units of what counts as the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import inf, isfinite
from typing import Protocol

import torch
from torch import Tensor

from vitconv.parity.tolerance import SAME_FUNCTION


class Left(Protocol):
    """What a run left; `vitconv.parity.trace.Trace` is one."""

    @property
    def taps(self) -> Mapping[str, Tensor]: ...  # noqa: D102

    @property
    def tap_grads(self) -> Mapping[str, Tensor]: ...  # noqa: D102

    @property
    def grads(self) -> Mapping[str, Tensor]: ...  # noqa: D102

    @property
    def output(self) -> Tensor: ...  # noqa: D102


Item = tuple[str, str]  # kind ("tap", "output", "tap-grad", "grad") and name
FORWARD = ("tap", "output")

EXACT = SAME_FUNCTION
# A gradient is measured against itself, but against no less than this part of the whole gradient: that of a key's bias
# is a true zero.
SMALL = 1e-4
# At lower precision: what passes is so many times the rounding error of the side that is right. Its own error and the
# other's are of one size; over many parameters the largest ratio seen of correct code is 3.4.
TIMES = {"tap": 3.0, "output": 3.0, "tap-grad": 4.0, "grad": 5.0}


def items(run: Left) -> Iterator[tuple[Item, Tensor]]:
    """Yield everything that can be compared."""
    yield from ((("tap", n), x) for n, x in run.taps.items())
    yield ("output", "output"), run.output
    yield from ((("tap-grad", n), x) for n, x in run.tap_grads.items())
    yield from ((("grad", n), x) for n, x in run.grads.items())


@dataclass(frozen=True)
class Scale:
    """What an error is divided by: `size` gives a relative error, `allowed` what passes as 1."""

    size: Mapping[Item, float]
    allowed: Mapping[Item, float]


def sizes(run: Left) -> dict[Item, float]:
    """Return the size of each item: its norm, floored by a small part of the whole gradient for gradients."""
    norms = {item: float(x.double().norm()) for item, x in items(run)}
    whole = sum(n * n for (kind, name), n in norms.items() if kind == "grad" and name != "input") ** 0.5
    passed = max((n for (kind, _), n in norms.items() if kind == "tap-grad"), default=0.0)
    floor = {"grad": SMALL * whole, "tap-grad": SMALL * passed}
    return {item: max(n, floor.get(item[0], 0.0), 1e-300) for item, n in norms.items()}


def exact_scale(run: Left) -> Scale:
    """Return the scale for float64: what passes is `EXACT` of the size."""
    size = sizes(run)
    return Scale(size, {item: EXACT * s for item, s in size.items()})


def noise_scale(run: Left, right: Left, right64: Left, unit: float) -> Scale:
    """Return the scale for a lower precision of unit roundoff `unit`.

    `right` is the right side's run in that precision, `right64` the same in float64. An item whose own error is small
    by accident, as that of values that are exact, is granted some units of its size.
    """
    size = sizes(run)
    whole = max((s for (kind, name), s in size.items() if kind == "grad"), default=0.0)
    noise, exact = dict(items(right)), dict(items(right64))
    allowed: dict[Item, float] = {}
    for item, s in size.items():
        own = 0.0
        if item in noise and item in exact and noise[item].shape == exact[item].shape:
            own = float((noise[item].double() - exact[item].double()).norm())
        # A bias of keys has a gradient of rounding errors alone, of the size of those of the others.
        least = 2 * unit * (max(s, 0.05 * whole) if item[0] == "grad" else s)
        allowed[item] = TIMES[item[0]] * max(own, least)
    return Scale(size, allowed)


def widened(scale: Scale, rough: Left, exact: Left) -> Scale:
    """Allow for another network's rounding errors: `rough` is its run in the lower precision, `exact` in float64."""
    own = distances(rough, exact)
    return Scale(scale.size, {i: max(a, TIMES[i[0]] * own.get(i, 0.0)) for i, a in scale.allowed.items()})


def distances(rebuilt: Left, run: Left) -> dict[Item, float]:
    """Return the norm of the difference of every item that both have; infinite where shapes differ or NaN is met."""
    found = dict(items(rebuilt))
    out: dict[Item, float] = {}
    for item, x in items(run):
        if item in found:
            y = found[item]
            d = float((y.double() - x.to(y.device).double()).norm()) if y.shape == x.shape else inf
            out[item] = d if isfinite(d) else inf
    return out


def ratios(rebuilt: Left, run: Left, scale: Scale) -> dict[Item, float]:
    """Return distance over what is allowed, for every item that both have: above 1 it differs."""
    return {item: d / scale.allowed[item] for item, d in distances(rebuilt, run).items()}


@dataclass(frozen=True)
class Residual:
    """The largest relative error, forward and backward, and where the larger of both is."""

    forward: float
    backward: float
    worst: str

    def __str__(self) -> str:
        return f"{self.forward:.1e} forward, {self.backward:.1e} backward ({self.worst})"


def residual(found: Mapping[Item, float], scale: Scale) -> Residual:
    """Sum up ratios as relative errors."""
    relative = {item: r * scale.allowed[item] / scale.size[item] for item, r in found.items()}
    forward = max((r for (kind, _), r in relative.items() if kind in FORWARD), default=0.0)
    backward = max((r for (kind, _), r in relative.items() if kind not in FORWARD), default=0.0)
    worst = max(relative, key=lambda item: relative[item], default=("", "nothing"))
    return Residual(forward, backward, f"{worst[0]} {worst[1]}".removeprefix("output "))


def finite(run: Left) -> bool:
    """Return False when anything is NaN or infinite."""
    return all(bool(torch.isfinite(x).all()) for _, x in items(run))
