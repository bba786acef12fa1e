"""Sections of the report of `vitconv verify`: cause, where, every stage, taps and parameters, charts by depth."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from vitconv.report import Band, Chart, Column, Row, Section, Series

if TYPE_CHECKING:
    from vitconv.parity.compare import Gap
    from vitconv.parity.stage import Stage
    from vitconv.parity.verdict import Result

# Below what float64 can tell; a band starts here.
_NOTHING = 1e-17
_FIGURES = {
    "function": (("output", "output"), ("worst_tap", "worst tap"), ("gradients", "gradients"),
                 ("worst_gradient", "worst gradient"), ("max_abs", "max abs"), ("min_tolerance", "min tolerance")),
    "numerics": (("ratio", "B / A"), ("limit", "allowed"), ("error_a", "error of A"), ("error_b", "error of B"),
                 ("max_abs", "max abs"), ("min_tolerance", "min tolerance")),
}  # fmt: skip


def finding_of(stage: Stage) -> str:
    """Return a stage in one line: why it was left out, what is off first, or how well it went."""
    if stage.why_skipped is not None:
        return f"skipped: {stage.why_skipped}"
    bad = [r for r in stage.rows if r.status == "fail"] or [r for r in stage.rows if r.status == "warn"]
    if stage.key in ("where", "why"):
        return stage.rows[0].detail
    if bad:
        more = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
        return f"{bad[0].name}: {bad[0].detail}{more}"
    values = [r.values for r in stage.rows]
    if stage.key == "function":
        worst = max((v["smallest_threshold"] for v in values if "smallest_threshold" in v), default=math.nan)
        count = sum(v.get("compared", 0) for v in values)
        return f"{count} values and gradients of {len(values)} runs agree to {worst:.2g}"
    ratios = {r.name: r.values for r in stage.rows if "ratio" in r.values}
    if ratios:
        closest = max(ratios, key=lambda n: ratios[n]["ratio"] / ratios[n]["limit"])
        v = ratios[closest]
        return f"B's error is at most {v['ratio']:.2f} times A's ({closest}; {v['limit']:.3g} are allowed)"
    return f"{len(stage.rows)} checks hold"


def cause_section(result: Result) -> Section | None:
    """Return what the search through the fault catalogue found, with the figures before and after."""
    cause = result.cause
    if cause is None:
        return None
    right = "B" if getattr(cause, "side", "") == "A" else "A"
    columns = (
        Column("what", "largest relative gap"),
        Column("before", "as they are", "number"),
        Column("after", f"with this put into {right}" if cause.found else "after", "number"),
    )
    detail = getattr(cause, "detail", None)
    rows: list[Row] = []
    if detail is not None and cause.found:
        before, after = detail
        rows = [
            Row(("forward", before.forward, after.forward), "info"),
            Row(("backward", before.backward, after.backward), "info"),
        ]
    elif cause.before:
        rows = [Row(("all", cause.before, cause.after if cause.found else None), "info")]
    notes = [] if cause.found else [getattr(cause, "reason", "") or "no fault of the catalogue explains it"]
    if cause.found:
        notes.append(f"name in the catalogue: {', '.join(map(str, cause.found))}")
    others = getattr(cause, "others", ())
    if others:
        notes.append(f"cannot be told from it here: {'; '.join(' and '.join(o) for o in others)}")
    if cause.undetectable:
        notes.append(f"cannot be excluded at this noise: {', '.join(map(str, cause.undetectable))}")
    if cause.excluded:
        shown = ", ".join(map(str, cause.excluded[:8]))
        more = f" and {len(cause.excluded) - 8} more" if len(cause.excluded) > 8 else ""
        notes.append(f"tried and excluded: {shown}{more}")
    titles = " and ".join(getattr(cause, "titles", ()) or map(str, cause.found))
    return Section("cause", f"Why: {titles}" if titles else "Why?", columns, tuple(rows), tuple(n for n in notes if n))


def where_section(result: Result) -> Section | None:
    """Return where the sides part, with the profile by depth and every block alone."""
    where = result.where
    if where is None:
        return None
    exact = where.precision == "fp64"
    columns = (
        Column("block", "block alone, on A's input"),
        Column("update", "forward" if exact else "forward, B / A", "number" if exact else "ratio"),
        Column("backward", "backward" if exact else "backward, B / A", "number" if exact else "ratio"),
        Column("part", "part"),
    )
    rows = tuple(
        Row((b.name, b.update, b.backward, b.part), "fail" if b.off or b.off_backward else "ok") for b in where.blocks
    )
    names = [n for n, _ in where.profile]
    back = dict(where.backward_profile)
    series = (
        Series("values, forward", _points([v for _, v in where.profile])),
        Series("their gradients, backward", _points([back.get(n, math.nan) for n in names], gaps=True)),
    )
    limit = _threshold(result) if exact else None
    bands = () if limit is None else (_flat_band("the floor of one function", len(names), _NOTHING, limit),)
    label = "relative gap" if exact else "B's error / A's"
    title = f"How far B is from A, by depth ({where.precision}, {where.weights} weights, {where.inputs} images)"
    charts = (Chart(title, "from input to output", label, series, bands, tuple(names)),) if names else ()
    return Section("where", "Where they part", columns, rows, (where.sentence,), charts)


def _threshold(result: Result) -> float | None:
    return next((float(s.data["threshold"]) for s in result.stages if "threshold" in s.data), None)


def details(result: Result) -> Iterator[Section]:
    """Yield a section per stage with every row, its figures and charts."""
    for s in result.stages:
        if s.key in ("where", "why"):
            continue
        figures = _FIGURES.get(s.key.partition("-")[0], ())
        columns = (
            Column("name", "what"),
            Column("finding", "finding"),
            *(Column(key, title, "ratio" if key in ("ratio", "limit") else "number") for key, title in figures),
        )
        rows = [Row((r.name, r.detail, *(_number(r.values.get(key)) for key, _ in figures)), r.status) for r in s.rows]
        if s.why_skipped is not None:
            rows = [Row(("not run", s.why_skipped, *(None for _ in figures)), "skip")]
        fine = s.status in ("ok", "info")
        yield Section(s.key, s.title, columns, tuple(rows), s.notes, tuple(charts(s)), folded=fine)


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def charts(stage: Stage) -> Iterator[Chart]:
    """Yield the charts of a stage by depth, forward and backward, each with the band that is allowed."""
    data = stage.data
    if data.get("gaps"):
        for kind, title, label in _WAYS:
            found = _of(data["gaps"], kind)
            if found:
                band = _flat_band("the floor of one function", len(found), _NOTHING, data["threshold"])
                line = Series("gap between A and B", _points([g.rel_rms for g in found]))
                ticks = tuple(g.name for g in found)
                yield Chart(f"Gap in float64, {title}", label, "relative gap", (line,), (band,), ticks)
    if "ratios" in data:
        right = {g.key: g for g in data["b"]}
        for kind, title, label in _WAYS:
            found = [g for g in _of(data["a"], kind) if g.key in right]
            if not found:
                continue
            limit = data["limits"][kind]
            floors = [max(_size(g), _NOTHING) for g in found]
            band = Band(
                f"up to {limit:.3g} times A's own error",
                tuple((float(j), y / limit, y * limit) for j, y in enumerate(floors)),
            )
            lines = (
                Series("A", _points([g.rel_rms for g in found])),
                Series("B", _points([right[g.key].rel_rms for g in found])),
            )
            ticks = tuple(g.name for g in found)
            yield Chart(f"Error against float64, {title}", label, "relative error", lines, (band,), ticks)


_WAYS = (
    ("tap", "forward", "from input to output"),
    ("tap-grad", "backward", "from output to input"),
)


def _of(gaps: Iterable[Gap], kind: str) -> list[Gap]:
    found = [g for g in gaps if g.kind == kind]
    return found[::-1] if kind == "tap-grad" else found


def _size(gap: Gap) -> float:
    return gap.rel_rms if math.isfinite(gap.rel_rms) else _NOTHING


def _points(values: list[float], *, gaps: bool = False) -> tuple[tuple[float, float], ...]:
    """Return numbered values; with `gaps` a value that was not measured is left out."""
    return tuple((float(j), y) for j, y in enumerate(values) if not (gaps and math.isnan(y)))


def _flat_band(name: str, count: int, low: float, high: float) -> Band:
    return Band(name, tuple((float(j), low, high) for j in range(count)))


def tables(result: Result) -> Iterator[Section]:
    """Yield the tables of parameters and of taps: the gap in float64 and the ratio at every precision."""
    exact = next((s for s in result.stages if s.data.get("gaps")), None)
    rest = [s for s in result.stages if "ratios" in s.data]
    if exact is None and not rest:
        return
    for key, title, kinds in (
        ("parameters", "Parameters: their gradients", ("grad",)),
        ("taps", "Taps: values and their gradients", ("tap", "output", "tap-grad")),
    ):
        rows = list(_table_rows(exact, rest, kinds))
        if not rows:
            continue
        columns = (
            Column("name", "name", "code"),
            *((Column("kind", "of"),) if len(kinds) > 1 else ()),
            Column("gap", "float64 gap", "number"),
            Column("max_abs", "max abs", "number"),
            Column("cosine", "1 - cosine", "number"),
            Column("min_tolerance", "min tolerance", "number"),
            *(Column(s.key.partition("-")[2], f"{s.key.partition('-')[2]}, B / A", "ratio") for s in rest),
        )
        yield Section(key, title, columns, tuple(rows), (_LEGEND,), sortable=True)


_LEGEND = (
    "The float64 gap is the smallest threshold that would pass; min tolerance is the smallest t with "
    "|a - b| <= t (1 + |a|) for every element. B / A is B's error against float64 over A's own: the smallest k that "
    "would pass. A click on a title sorts."
)
_KIND = {"tap": "value", "output": "value", "tap-grad": "gradient", "grad": "gradient"}


def _table_rows(exact: Stage | None, rest: list[Stage], kinds: tuple[str, ...]) -> Iterator[Row]:
    found: Mapping[tuple[str, str], Gap] = {} if exact is None else {g.key: g for g in exact.data["gaps"]}
    threshold = 0.0 if exact is None else float(exact.data["threshold"])
    keys = [k for k in dict.fromkeys([*found, *(k for s in rest for k in s.data["ratios"])]) if k[0] in kinds]
    for key in keys:
        gap = found.get(key)
        ratios = [s.data["ratios"].get(key) for s in rest]
        off = gap is not None and not gap.rel_rms <= threshold
        over = [r is not None and not r <= s.data["limits"][key[0]] for r, s in zip(ratios, rest, strict=True)]
        figures = (None,) * 4 if gap is None else (gap.rel_rms, gap.max_abs, 1 - gap.cosine, gap.min_tolerance)
        kind = (_KIND[key[0]],) if len(kinds) > 1 else ()
        yield Row((key[1], *kind, *figures, *ratios), "fail" if off or any(over) else "ok")
