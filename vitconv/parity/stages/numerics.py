"""Same numerics? Each side's error against float64 at a precision; the other may err k times what the baseline does."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch

from vitconv.parity.compare import Gap, gaps_each, pooled, whole
from vitconv.parity.pair import Pair
from vitconv.parity.precision import emulated, precision_of
from vitconv.parity.stage import Blame, Row, Stage, short, stage
from vitconv.parity.tolerance import (
    HEADROOM,
    LOSS_SCALE_MAX,
    LOSS_SCALE_MIN,
    NULL,
    ROUNDINGS,
    SCALE_FLOOR,
    SPREAD_LIMIT,
    SPREAD_MARGIN,
    Profile,
)
from vitconv.parity.trace import Trace
from vitconv.parity.variants import spread, variants

KEY = "numerics"
GROUPS = ("tap", "gradients", "parameter")
# Of these, differences of single elements are told too: a gradient is as large as the cotangent happens to be.
VALUES = ("tap", "output")


@dataclass(frozen=True)
class Judged:
    """One precision, judged.

    Attributes:
        ratios: {(kind, name): B's error over A's, or over the floor if that is larger}.
        limits: {kind: the ratio that is still allowed}.
        loss_scale: {inputs: scale}.
        weights: the set that was run.
    """

    stage: Stage
    precision: str
    ratios: Mapping[tuple[str, str], float]
    limits: Mapping[str, float]
    loss_scale: Mapping[str, float]
    weights: str


def same_numerics(pair: Pair, precision: str, profile: Profile, *, same: bool | None = None) -> Judged:
    """Judge one precision on the given weights, or on probe weights when there are none.

    `same`: whether the function is known to be the same in float64; only then can an error be laid to the arithmetic.
    """
    of = pair.judged_with
    p = precision_of(precision)
    runs = variants(pair, of) if profile.calibrated else {}
    errors: dict[str, list[list[Gap]]] = {"A": [], "B": []}
    scales: dict[str, float] = {}
    spreads: dict[str, dict[str, float]] = {}
    # Float64 with the weights as the precision holds them, so that only its arithmetic is judged.
    rounded = None if pair.exact_in(p.dtype, of) else p.dtype
    for inputs in pair.images:
        reference = pair.run(pair.a, inputs, "fp64", of, rounded=rounded)
        scale = scales[inputs] = loss_scale(precision, reference)
        both = [pair.run(side, inputs, precision, of, loss_scale=scale) for side in (pair.a, pair.b)]
        for label, found in zip(errors, gaps_each(reference, both, VALUES), strict=True):
            errors[label].append(found)
        if inputs == next(iter(pair.images)):
            for name, strays in spread(runs, reference, precision, of, scale):
                spreads[name] = _worst_of(strays, errors["A"][0], p.unit)
    a, b = pooled(errors["A"]), pooled(errors["B"])
    key = f"{KEY}-{precision}"
    title = f"Same numerics? ({p.title})"
    ratios = ratios_of(a, b, p.unit)
    limits = limits_of(profile, spreads)
    rows = judge_rows(a, b, ratios, limits)
    notes = [how] if (how := emulated(precision, pair.device)) else []
    if set(scales.values()) != {1.0}:
        notes.append(f"loss scale: {', '.join(f'{n} {s:g}' for n, s in scales.items())}")
    for name, worst in spreads.items():
        said = ", ".join(f"{group} {worst[group]:.2f}" for group in GROUPS)
        notes.append(f"the baseline as '{name}' errs {said} times as much")
    if precision == "fp32" and same:
        notes += tf32_like({pair.a.label: a, pair.b.label: b}, rows)
    data = {"a": a, "b": b, "ratios": ratios, "limits": limits, "unit": p.unit, "spread": spreads, "weights": of}
    return Judged(stage(key, title, rows, notes, data), precision, ratios, limits, scales, of)


def loss_scale(precision: str, reference: Trace) -> float:
    """Return a power of two that puts the largest gradient near, and not at, float16's limit; 1 for the others."""
    p = precision_of(precision)
    if torch.float16 not in (p.autocast, p.dtype):
        return 1.0
    every = [g for part in (reference.tap_grads, reference.grads) for g in part.values()]
    largest = max((float(g.abs().max()) for g in every if g.numel()), default=0.0)
    if not largest or not math.isfinite(largest):
        return LOSS_SCALE_MIN
    scale = 2.0 ** math.floor(math.log2(torch.finfo(torch.float16).max * HEADROOM / largest))
    return min(max(scale, LOSS_SCALE_MIN), LOSS_SCALE_MAX)


def allowed_floor(gap: Gap, unit: float) -> float:
    """Return the error that the baseline counts as having at least, ||.||.

    A gradient that is zero in exact arithmetic is noise of its neighbours', so it is measured against the largest.
    """
    null = gap.kind == "grad" and gap.floor > 0 and gap.size <= NULL / SCALE_FLOOR * gap.floor
    return ROUNDINGS * unit * (gap.floor / SCALE_FLOOR if null else max(gap.size, gap.floor))


def ratios_of(a: Iterable[Gap], b: Iterable[Gap], unit: float) -> dict[tuple[str, str], float]:
    """Return {(kind, name): B's error over the larger of A's and the floor}, and ("gradients", "all")."""
    base = {g.key: g for g in a}
    out: dict[tuple[str, str], float] = {}
    for gap in b:
        own = base.get(gap.key)
        if own is None:
            continue
        against = max(own.error if math.isfinite(own.error) else 0.0, allowed_floor(own, unit))
        out[gap.key] = gap.error / against if against else (1.0 if gap.error == 0 else math.inf)
    (mine, size), (theirs, _) = whole(base.values()), whole(b)
    against = max(mine if math.isfinite(mine) else 0.0, ROUNDINGS * unit * size)
    out["gradients", "all"] = theirs / against if against else 1.0
    return out


def _worst_of(found: Mapping[tuple[str, str], float], own: Iterable[Gap], unit: float) -> dict[str, float]:
    """Return the worst ratio of a variant's errors to the baseline's own, per group."""
    worst = dict.fromkeys(GROUPS, 0.0)
    whole_a = whole_v = 0.0
    for gap in own:
        error = found.get(gap.key, math.inf)
        if not (math.isfinite(error) and math.isfinite(gap.error)):
            continue
        group = {"tap": "tap", "output": "tap", "tap-grad": "gradients", "grad": "parameter"}[gap.kind]
        worst[group] = max(worst[group], error / max(gap.error, allowed_floor(gap, unit), 1e-300))
        if gap.kind == "grad":
            whole_a, whole_v = math.hypot(whole_a, gap.error), math.hypot(whole_v, error)
    if whole_a:
        worst["gradients"] = max(worst["gradients"], whole_v / whole_a)
    return worst


def limits_of(profile: Profile, spreads: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Return {kind: allowed ratio}: the profile's k, widened by the spread of the baseline's variants."""
    if not profile.calibrated:
        spreads = {}

    def widened(k: float, group: str) -> float:
        seen = max((s[group] for s in spreads.values()), default=0.0) * SPREAD_MARGIN
        return min(max(k, seen), k * SPREAD_LIMIT)

    tap, grads = widened(profile.tap, "tap"), widened(profile.gradients, "gradients")
    return {
        "tap": tap, "output": tap, "tap-grad": grads, "gradients": grads,
        "grad": widened(profile.parameter, "parameter"),
    }  # fmt: skip


def judge_rows(
    a: Iterable[Gap],
    b: Iterable[Gap],
    ratios: Mapping[tuple[str, str], float],
    limits: Mapping[str, float],
) -> list[Row]:
    """Return one row for taps, one for gradients of taps, one for parameters, one for all gradients, one per ill."""
    left, right = {g.key: g for g in a}, {g.key: g for g in b}
    rows = list(_sick(left, right))
    titles = {"tap": "taps", "output": "output", "tap-grad": "gradients of taps", "grad": "gradients of parameters"}
    for kind, title in titles.items():
        mine = {name: r for (k, name), r in ratios.items() if k == kind}
        if not mine:
            continue
        worst = max(mine, key=lambda n: mine[n] if math.isfinite(mine[n]) else math.inf)
        off = [n for n, r in mine.items() if not r <= limits[kind]]
        x, y = left[kind, worst], right[kind, worst]
        detail = f"worst of {len(mine)}: {worst}, B errs {short(mine[worst])} times as much as A"
        values = {
            "ratio": mine[worst], "limit": limits[kind], "worst": worst, "error_a": x.rel_rms, "error_b": y.rel_rms,
            "max_abs": y.max_abs, "cosine": y.cosine, "bias": y.bias, "off": len(off), "of": len(mine),
            "smallest_k": mine[worst],
        }  # fmt: skip
        if kind in VALUES:
            values |= {"max_rel": y.max_rel, "min_tolerance": y.min_tolerance}
        rows.append(Row(title, "fail" if off else "ok", detail, values))
    total = ratios["gradients", "all"]
    ok = total <= limits["gradients"]
    detail = f"together B's err {short(total)} times as much as A's"
    rows.append(Row("all gradients", "ok" if ok else "fail", detail, {"ratio": total, "limit": limits["gradients"]}))
    return rows


def _sick(left: Mapping[tuple[str, str], Gap], right: Mapping[tuple[str, str], Gap]) -> Iterable[Row]:
    """Yield a row per side for the first NaN or Inf, forward and backward apart, and the first collapse."""
    for label, found, blame in (("A", left, "undecided"), ("B", right, "differs")):
        # Against float64, the trace at the precision is the second of the two.
        for what, kinds in (("forward", ("tap", "output")), ("gradients", ("tap-grad", "grad"))):
            sick = [g for g in found.values() if g.kind in kinds and not g.finite_b]
            if sick:
                detail = f"NaN or Inf, first at {sick[0].name} ({len(sick)} values)"
                yield Row(f"{label}: {what} finite", "fail", detail, {"site": sick[0].name}, _as_blame(blame))
        flat = [g for g in found.values() if g.constant_b and not g.constant_a and g.kind in ("tap", "output")]
        if flat:
            detail = f"collapsed to one number, first at {flat[0].name}"
            yield Row(f"{label}: not collapsed", "fail", detail, {"site": flat[0].name}, _as_blame(blame))


def _as_blame(word: str) -> Blame:
    return "undecided" if word == "undecided" else "differs"


def tf32_like(errors: Mapping[str, list[Gap]], rows: Iterable[Row]) -> list[str]:
    """Say so when a side's float32 error is of TF32's size: TF32 may be on there."""
    if all(r.status != "fail" for r in rows):
        return []
    unit = precision_of("tf32").unit
    out = []
    for label, found in errors.items():
        error = math.hypot(*(g.error for g in found if g.kind == "tap"))
        size = math.hypot(*(g.size for g in found if g.kind == "tap"))
        if size and 0.05 * unit <= error / size <= 5 * unit:
            out.append(
                f"{label}: the float32 error {short(error / size)} is TF32-like (10 bits, {short(unit)}):"
                " products with rounded operands, not other weights"
            )
    return out
