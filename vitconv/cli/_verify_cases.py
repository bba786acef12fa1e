"""`vitconv verify` for test runners: a suite per stage, a case per finding and per group of taps, skips visible."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from vitconv.report import Column, Row, Section

if TYPE_CHECKING:
    from vitconv.parity.compare import Gap
    from vitconv.parity.stage import Stage
    from vitconv.parity.verdict import Result

_WAYS = {"tap": "forward", "output": "forward", "tap-grad": "backward", "grad": "parameters"}
_FIGURES = (
    Column("case", "case"),
    Column("worst", "worst"),
    Column("found", "found", "number"),
    Column("allowed", "allowed", "number"),
    Column("max_abs", "max abs", "number"),
    Column("min_tolerance", "min tolerance", "number"),
)


def cases(result: Result, headline: str) -> tuple[Section, ...]:
    """Return a section per stage whose rows are the cases; failures carry their figures and the headline."""
    return tuple(_suite(s, headline) for s in result.stages)


def _suite(stage: Stage, headline: str) -> Section:
    nothing = (None,) * (len(_FIGURES) - 1)
    if stage.why_skipped is not None:
        return Section(stage.key, stage.key, _FIGURES, (Row((stage.title, *nothing), "skip", stage.why_skipped),))
    rows = [Row((r.name, *nothing), r.status, _told(r.detail, r.status, headline)) for r in stage.rows]
    return Section(stage.key, stage.key, _FIGURES, (*rows, *_groups(stage, headline)))


def _told(detail: str, status: str, headline: str) -> str:
    return f"{detail}; {headline}" if status == "fail" else detail


def _groups(stage: Stage, headline: str) -> Iterator[Row]:
    """Yield one case per group of taps and direction: a block, or what stands ahead of or behind the blocks."""
    data = stage.data
    if data.get("gaps"):
        limit = float(data["threshold"])
        measured = [(g, g.rel_rms, limit) for g in data["gaps"]]
        what = "relative gap in float64"
    elif "ratios" in data:
        measured = [(g, data["ratios"][g.key], data["limits"][g.kind]) for g in data["b"] if g.key in data["ratios"]]
        what = "B's error over A's own"
    else:
        return
    groups: dict[str, list[tuple[Gap, float, float]]] = {}
    for gap, found, limit in measured:
        groups.setdefault(f"{_group(gap.name)}, {_WAYS[gap.kind]}", []).append((gap, found, limit))
    for name, members in groups.items():
        yield _case(name, members, what, headline)


def _case(name: str, members: Sequence[tuple[Gap, float, float]], what: str, headline: str) -> Row:
    gap, found, limit = max(members, key=lambda m: m[1] / m[2] if math.isfinite(m[1]) else math.inf)
    off = sum(1 for _, f, k in members if not f <= k)
    detail = f"{what}: {gap.name} {found:.3g} of {limit:.3g} allowed; {off} of {len(members)} off"
    status = "fail" if off else "ok"
    tolerance = None if math.isnan(gap.min_tolerance) else gap.min_tolerance
    cells = (name, gap.name, found, limit, gap.max_abs, tolerance)
    return Row(cells, "fail" if off else "ok", _told(detail, status, headline))


def _group(name: str) -> str:
    parts = name.split(".")
    return ".".join(parts[:2]) if parts[0] == "blocks" else parts[0]
