"""Gaps between two traces: how far apart every tap, its gradient and the gradient of every parameter are."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vitconv.errors import Refused
from vitconv.parity.figures import Figures, Memory, distance, figures_of, norm
from vitconv.parity.tolerance import SCALE_FLOOR
from vitconv.parity.trace import Trace

KINDS = ("tap", "output", "tap-grad", "grad")


@dataclass(frozen=True)
class Gap:
    """How far b is from a in one value.

    Attributes:
        name: canonical name of the tap or the parameter, "input", or "output".
        kind: "tap", "tap-grad", "grad" or "output".
        rel_rms: ||a - b|| / max(||a||, floor): what decides. The floor is a part of the largest of the kind.
        max_abs: the largest difference of one element.
        max_rel: the largest of one element relative to itself; says little near zero.
        cosine: of the angle between both, 1 when both are zero.
        scale: root mean square of a.
        min_tolerance: the smallest t with |a - b| <= t (1 + |a|) for every element.
        finite_a, finite_b: no NaN or Inf.
        constant_a, constant_b: all elements are one number.
        bias: mean of b - a over the scale.
        error: ||a - b||, and size: ||a||, as they are, to be pooled.
        numel: number of elements.
        shapes: both, in words, where they are not the same; nothing else was compared then.
    """

    name: str
    kind: str
    rel_rms: float
    max_abs: float
    max_rel: float
    cosine: float
    scale: float
    min_tolerance: float
    finite_a: bool
    finite_b: bool
    constant_a: bool
    constant_b: bool
    bias: float
    error: float
    size: float
    floor: float
    numel: int
    shapes: str = ""

    @property
    def key(self) -> tuple[str, str]:
        """Kind and name."""
        return self.kind, self.name

    @property
    def finite(self) -> bool:
        """True when both sides are free of NaN and Inf."""
        return self.finite_a and self.finite_b


def gaps(a: Trace, b: Trace) -> list[Gap]:
    """Compare two traces of the same images: taps in running order, output, gradients of taps, of parameters.

    Raises:
        Refused: they have nothing in common.
    """
    return gaps_each(a, (b,))[0]


def gaps_each(a: Trace, others: Sequence[Trace], elementwise: Collection[str] = KINDS) -> list[list[Gap]]:
    """Compare one trace with several, as `gaps` does with each; what is read of it is read once.

    `elementwise`: the kinds of which `max_rel` and `min_tolerance`, which decide nothing, are wanted: else NaN.

    Raises:
        Refused: one has nothing in common with it.
    """
    found: list[list[Gap]] = [[] for _ in others]
    memory = Memory()
    for kind in KINDS:
        every = [_values(b, kind) for b in others]
        parts = _kind(kind, _values(a, kind), every, memory, elementwise=kind in elementwise)
        for whole_, part in zip(found, parts, strict=True):
            whole_ += part
    for b, each in zip(others, found, strict=True):
        if not each:
            raise Refused(f"the traces of {a.side} and {b.side} have nothing in common: nothing was compared")
    return found


def error_against(reference64: Trace, t: Trace) -> list[Gap]:
    """Return the error of a trace against the float64 trace of the same images."""
    return gaps(reference64, t)


def distances(a: Trace, b: Trace) -> dict[tuple[str, str], float]:
    """Return {(kind, name): ||a - b||}, infinite where it is no number: what `gaps` has as `error`, and no more."""
    out, memory = {}, Memory()
    for kind in KINDS:
        left, right = _values(a, kind), _values(b, kind)
        for name in (n for n in left if n in right):
            x, y = left[name], right[name]
            out[kind, name] = distance(_flat(x), _flat(y), memory) if x.shape == y.shape else math.inf
    return out


def missing(a: Trace, b: Trace) -> dict[str, tuple[str, ...]]:
    """Return {what: names} that only one of the traces has."""
    out: dict[str, tuple[str, ...]] = {}
    for kind in KINDS:
        left, right = _values(a, kind), _values(b, kind)
        for label, here, there in ((a.side, left, right), (b.side, right, left)):
            only = tuple(n for n in here if n not in there)
            if only:
                out[f"{kind} only of {label}"] = only
    return out


def pooled(many: Iterable[Iterable[Gap]]) -> list[Gap]:
    """Join the gaps of several inputs: errors and sizes add as squares, extremes and NaN are kept."""
    groups: dict[tuple[str, str], list[Gap]] = {}
    for one in many:
        for gap in one:
            groups.setdefault(gap.key, []).append(gap)
    return [_pool(group) for group in groups.values()]


def whole(found: Iterable[Gap], kind: str = "grad") -> tuple[float, float]:
    """Return (||a - b||, ||a||) over all values of a kind together, the input's gradient left out."""
    chosen = [g for g in found if g.kind == kind and g.name != "input"]
    return math.hypot(*(g.error for g in chosen)), math.hypot(*(g.size for g in chosen))


def _values(t: Trace, kind: str) -> Mapping[str, Tensor]:
    by_kind: dict[str, Mapping[str, Tensor]] = {
        "tap": t.taps, "output": {"output": t.output}, "tap-grad": t.tap_grads, "grad": t.grads
    }  # fmt: skip
    return by_kind[kind]


def _kind(
    kind: str,
    a: Mapping[str, Tensor],
    others: Sequence[Mapping[str, Tensor]],
    memory: Memory,
    *,
    elementwise: bool,
) -> list[list[Gap]]:
    # Every value is read once: its size is among what is summed up.
    norms: dict[str, float] = {}
    seen: list[dict[str, Figures]] = [{} for _ in others]
    for name, x in a.items():
        fit = [j for j, b in enumerate(others) if name in b and b[name].shape == x.shape]
        against = [_flat(others[j][name]) for j in fit]
        for j, figures in zip(fit, figures_of(_flat(x), against, memory, elementwise=elementwise), strict=True):
            seen[j][name], norms[name] = figures, figures.size
        if not fit and any(name in b for b in others):
            norms[name] = norm(x.double())
    return [
        _gaps(kind, a, b, {n: norms[n] for n in a if n in b}, figures) for b, figures in zip(others, seen, strict=True)
    ]


def _flat(x: Tensor) -> Tensor:
    return x.detach().cpu().flatten()


def _gaps(
    kind: str,
    a: Mapping[str, Tensor],
    b: Mapping[str, Tensor],
    norms: Mapping[str, float],
    seen: Mapping[str, Figures],
) -> list[Gap]:
    # The largest of the kind sets the floor; a value that is not finite sets none. The input is not a parameter.
    sizes = [norm / a[n].numel() ** 0.5 for n, norm in norms.items() if n != "input" and a[n].numel()]
    floor = SCALE_FLOOR * max((s for s in sizes if math.isfinite(s)), default=0.0)
    out = []
    for n in norms:
        of = 0.0 if n == "input" else floor
        out.append(_gap(n, kind, a[n], b[n], of, seen[n]) if n in seen else _unlike(n, kind, a[n], b[n]))
    return out


def _unlike(name: str, kind: str, a: Tensor, b: Tensor) -> Gap:
    """Return the gap of values of two shapes: as far apart as can be, and not sick for that."""
    inf, nan = math.inf, math.nan
    return Gap(
        name, kind, inf, nan, nan, nan, rms(a), inf, _finite(a, norm(a)), _finite(b, norm(b)), False, False, nan,
        inf, norm(a), 0.0, a.numel(), f"shapes {list(a.shape)} and {list(b.shape)}",
    )  # fmt: skip


def rms(x: Tensor) -> float:
    """Return the root mean square of a tensor, 0 of one without elements."""
    return norm(x.double()) / x.numel() ** 0.5 if x.numel() else 0.0


def is_finite(x: Tensor) -> bool:
    """Return whether a tensor is free of NaN and Inf."""
    return _finite(x, float(torch.linalg.vector_norm(x)))


def is_constant(x: Tensor) -> bool:
    """Return whether all elements, two at least, are one number."""
    return _constant(x.flatten())


def _finite(x: Tensor, norm: float) -> bool:
    # A norm that is finite saw nothing else; one that is not can be an overflow of squares.
    return math.isfinite(norm) or bool(x.isfinite().all())


def _gap(name: str, kind: str, a: Tensor, b: Tensor, floor: float, f: Figures) -> Gap:
    n, error, size, other = a.numel(), f.error, f.size, f.other
    max_abs, max_rel, min_tolerance = f.max_abs, f.max_rel, f.min_tolerance
    finite_a, finite_b = _finite(a, size), _finite(b, other)
    constant_a, constant_b = _constant(a.detach().flatten()), _constant(b.detach().flatten())
    if not (finite_a and finite_b):
        worst = math.nan
        return Gap(
            name, kind, math.inf, worst, worst, worst, rms(a), math.inf,
            finite_a, finite_b, constant_a, constant_b, worst, math.inf, size, floor * n**0.5, n,
        )  # fmt: skip
    if max_abs == 0:
        return Gap(
            name, kind, 0.0, 0.0, 0.0, 1.0, size / n**0.5 if n else 0.0, 0.0,
            True, True, constant_a, constant_b, 0.0, 0.0, size, floor * n**0.5, n,
        )  # fmt: skip
    against = max(size, floor * n**0.5)
    return Gap(
        name=name,
        kind=kind,
        rel_rms=error / against if against else (0.0 if error == 0 else math.inf),
        max_abs=max_abs,
        max_rel=max_rel,
        cosine=f.cosine,
        scale=size / n**0.5,
        min_tolerance=min_tolerance,
        finite_a=True,
        finite_b=True,
        constant_a=constant_a,
        constant_b=constant_b,
        bias=f.total / n / (against / n**0.5) if against else 0.0,
        error=error,
        size=size,
        floor=floor * n**0.5,
        numel=n,
    )


def _constant(x: Tensor) -> bool:
    return x.numel() > 1 and float(x[0]) == float(x[-1]) and bool((x == x[0]).all())


def _most(values: Iterable[float]) -> float:
    """Return the largest, NaN when one of them is: `max` depends on their order then."""
    found = list(values)
    return math.nan if any(map(math.isnan, found)) else max(found)


def _pool(group: list[Gap]) -> Gap:
    first = group[0]
    error, size = math.hypot(*(g.error for g in group)), math.hypot(*(g.size for g in group))
    floor, n = math.hypot(*(g.floor for g in group)), sum(g.numel for g in group)
    against = max(size, floor)
    finite = all(g.finite and not g.shapes for g in group)
    weights = [g.numel / n if n else 0.0 for g in group]
    return Gap(
        name=first.name,
        kind=first.kind,
        rel_rms=(error / against if against else (0.0 if error == 0 else math.inf)) if finite else math.inf,
        max_abs=max(g.max_abs for g in group) if finite else math.nan,
        max_rel=_most(g.max_rel for g in group) if finite else math.nan,
        cosine=min(g.cosine for g in group) if finite else math.nan,
        scale=size / n**0.5 if n else 0.0,
        min_tolerance=_most(g.min_tolerance for g in group),
        finite_a=all(g.finite_a for g in group),
        finite_b=all(g.finite_b for g in group),
        constant_a=any(g.constant_a for g in group),
        constant_b=any(g.constant_b for g in group),
        bias=sum(w * g.bias for w, g in zip(weights, group, strict=True)),
        error=error,
        size=size,
        floor=floor,
        numel=n,
        shapes=next((g.shapes for g in group if g.shapes), ""),
    )
