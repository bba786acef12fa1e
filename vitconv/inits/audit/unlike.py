"""Kinds of tensors that no scheme draws so: by how much they are off, and which usual draw they look like."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from statistics import median

from vitconv.inits.audit.conform import LARGE, conforms
from vitconv.inits.audit.finding import Finding
from vitconv.inits.audit.fit import Fitted
from vitconv.inits.audit.measure import Measured
from vitconv.inits.base.distribution import (
    Distribution,
    lecun_normal,
    normal,
    torch_default,
    truncated_absolute,
    truncated_sigma,
    uniform,
    xavier_normal,
    xavier_uniform,
)
from vitconv.inits.base.fans import Fans, conv_fans, flat_fans, fused_fans, linear_fans
from vitconv.layout.blocks import labelled
from vitconv.layout.canonical import kind_of

# A kind that is off by less is worth knowing, by more it is to be looked at.
FACTOR = 2.0
_MOST = 6
_ELSEWHERE = frozenset({"finite", "outlier"})


def unlike(fit: Fitted, measured: Mapping[str, Measured]) -> Iterator[Finding]:
    """Yield one finding on the kinds of which most tensors deviate from the nearest scheme, faults left aside."""
    kinds: dict[str, list[str]] = {}
    for name in fit.outcomes:
        kinds.setdefault(kind_of(name), []).append(name)
    lines: list[str] = []
    where: list[str] = []
    far = False
    for kind, names in kinds.items():
        off = [n for n in names if n in fit.misfits and fit.misfits[n].test not in _ELSEWHERE]
        off = [n for n in off if not (measured[n].constant and measured[n].low == 0.0)]
        if 2 * len(off) < len(names) or not off:
            continue
        text, large = _told([measured[n] for n in off], [fit.declared[n] for n in off])
        m, d = measured[off[0]], fit.declared[off[0]]
        if d.std > 0 and not m.constant and not look(m) and abs(math.log(m.std / d.std)) < LARGE["scale"]:
            text = fit.misfits[off[0]].text
        lines.append(f"{labelled(kind, off)} {text}")
        where += off
        far = far or large
    if lines:
        more = f"; and {len(lines) - _MOST} kinds more" if len(lines) > _MOST else ""
        yield Finding(
            "off-scheme", "warn" if far else "info", tuple(where),
            f"{fit.scheme.name}, the nearest scheme, draws otherwise: {'; '.join(lines[:_MOST])}{more}",
            "if it is not meant: look at what the init function does to these layers, or draw them by a scheme",
        )  # fmt: skip


def _told(found: list[Measured], expected: list[Distribution]) -> tuple[str, bool]:
    m, d = found[len(found) // 2], expected[len(found) // 2]
    if m.constant:
        return f"is {m.low:.3g} everywhere, not {d.text}", d.family != "constant" or _far(m.low, d.centre)
    std = median(x.std for x in found)
    like = look(m)
    guess = f", which is {like}" if like else ""
    if d.std == 0.0:
        return f"has std {std:.3g}, not {d.text}{guess}", std > 0.1
    ratio = std / d.std
    # A token may start smaller than another scheme has it.
    small = ratio < 1 / FACTOR and len(m.shape) > 1
    times = f"{ratio:.3g}" if ratio > 99 else f"{ratio:.2g}"
    return f"has std {std:.3g}, {times} times that of {d.text}{guess}", small or not ratio <= FACTOR


def _far(value: float, right: float) -> bool:
    return abs(value - right) > 0.1 * max(1.0, abs(right))


def look(m: Measured) -> str:
    """Return the usual draw that a tensor looks like, or ""."""
    if m.edge == m.edge and m.edge < 0.8:
        # Independent entries reach 0.97 and more: here all singular values are alike.
        return "orthogonal"
    for name, d in _usual(m.shape):
        if m.std > 0 and conforms(m, d).good:
            return name
    return ""


def _usual(shape: tuple[int, ...]) -> Iterator[tuple[str, Distribution]]:
    if len(shape) >= 2:
        fans: dict[str, Fans] = {"": linear_fans(shape) if len(shape) == 2 else flat_fans(shape)}
        if len(shape) == 2:
            fans[", q, k, v drawn as one"] = fused_fans(shape)
        else:
            fans[", fans of a convolution"] = conv_fans(shape)
        for how, f in fans.items():
            yield f"xavier uniform{how}", xavier_uniform(f)
            yield f"xavier normal{how}", xavier_normal(f)
            yield f"kaiming normal by fan_in{how}", normal(math.sqrt(2.0 / f.fan_in))
            yield f"kaiming normal by fan_out{how}", normal(math.sqrt(2.0 / f.fan_out))
            yield f"kaiming uniform by fan_in{how}", uniform(math.sqrt(6.0 / f.fan_in))
            yield f"lecun normal{how}", lecun_normal(f)
            yield f"torch's default{how}", torch_default(f)
    for std in (0.02, 1.0):
        yield f"N(0, {std:g})", normal(std)
        yield f"N(0, {std:g}) cut at two sigma", truncated_sigma(std)
        yield f"trunc_normal_ of std {std:g}, cut at -2 and 2", truncated_absolute(std)
