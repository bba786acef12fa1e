"""Reports of `vitconv verify`: all of it for a page, what a person needs first for a terminal, figures for JSON."""

from __future__ import annotations

import math
from dataclasses import asdict, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitconv.cli._verify_cases import cases
from vitconv.cli._verify_sections import cause_section, details, finding_of, tables, where_section
from vitconv.report import Column, Fact, Report, Row, Section, Verdict

if TYPE_CHECKING:
    from vitconv.layout.semantics import Semantics
    from vitconv.parity.stage import Stage
    from vitconv.parity.verdict import Result
    from vitconv.report.document import Status, Value

SCHEMA, VERSION = "vitconv.verify", 1
TITLE = "Do they compute the same?"
# What wrote a file says nothing of the function; what is told about it stays out of what differs.
_ASIDE = ("release", "mlp_dropout")
_STATUS: dict[str, Status] = {"same": "ok", "differs": "fail", "undecided": "warn"}
# What the JSON tells of the cause; docs/verify-schema.md says what each is.
_CAUSE = (
    "found", "titles", "side", "before", "after", "detail", "proven", "others", "excluded", "undetectable", "rounds",
    "runs", "stretches", "reason",
)  # fmt: skip
# Rows shown of each stage that is off; -v shows all.
WORST = 2


def full(result: Result) -> Report:
    """Return the whole report, for a page."""
    sections = [cause_section(result), where_section(result), _stages(result), *details(result), *tables(result)]
    return _report(result, facts(result), tuple(s for s in sections if s is not None))


def brief(result: Result) -> Report:
    """Return what a person needs first: facts that differ, a line per stage, the worst rows, the cause."""
    told = tuple(f for f in facts(result) if f.differs and f.label not in _ASIDE)
    sections = [_stages(result), _worst(result), cause_section(result)]
    short = _report(result, told, tuple(s for s in sections if s is not None))
    return replace(short, environment=(), command="")


def machine(result: Result) -> Report:
    """Return the report for JSON, whose form docs/verify-schema.md tells: stages in place of sections."""
    return _report(result, facts(result), ())


def junit(result: Result) -> Report:
    """Return the report for JUnit: a suite per stage, a case per run and per group of taps.

    JUnit knows no "undecided": what is not proved to be the same has not passed.
    """
    told = _report(result, (), cases(result, _headline(result)))
    if result.verdict == "same" or told.verdict is None:
        return told
    return replace(told, verdict=replace(told.verdict, status="fail"))


def save(result: Result, path: Path) -> None:
    """Write the report in the form that the file's suffix names."""
    from vitconv.cli._output import save as write

    forms = {".json": machine, ".xml": junit}
    write(forms.get(path.suffix.lower(), full)(result), path)


def _report(result: Result, told: tuple[Fact, ...], sections: tuple[Section, ...]) -> Report:
    return Report(
        SCHEMA,
        TITLE,
        version=VERSION,
        verdict=Verdict(result.verdict, _STATUS[result.verdict], _headline(result)),
        sides=(f"A: {result.spec_a}", f"B: {result.spec_b}"),
        side_keys=("A", "B"),
        facts=told,
        sections=sections,
        environment=tuple(Fact(k, (_value(v),)) for k, v in result.environment.items()),
        command=result.command,
        data={
            "sides": {"A": result.spec_a, "B": result.spec_b},
            "exit_code": result.exit_code,
            "reason": result.reason,
            "profile": result.profile,
            "stages": [_stage(s) for s in result.stages],
            "where": None if result.where is None else asdict(result.where),
            "cause": None if result.cause is None else {k: _plain(getattr(result.cause, k)) for k in _CAUSE},
        },
    )


def _headline(result: Result) -> str:
    """Return the sentence beside the verdict: the cause where it is known, else the reason."""
    cause = result.cause
    if result.verdict != "differs" or cause is None:
        return result.reason
    if not cause.found:
        tried = f" ({len(cause.excluded)} tried)" if cause.excluded else ""
        return f"{result.reason}; no fault of the catalogue explains it{tried}"
    if getattr(cause, "watched", False):
        return f"{result.reason}; {cause.reason}"
    titles = " and ".join(getattr(cause, "titles", ()) or cause.found)
    wrong = getattr(cause, "side", "") or "B"
    right = "A" if wrong == "B" else "B"
    if not getattr(cause, "proven", True):
        return f"{wrong} is like {right} with this: {titles}; nothing is proved by that ({cause.reason})"
    return (
        f"{wrong} is {right} with this: {titles}. Put into {right}, it takes the largest gap from {cause.before:.2g} "
        f"to {cause.after:.2g}"
    )


def facts(result: Result) -> tuple[Fact, ...]:
    """Return what is known of either side; what is not known is empty."""
    left, right = _known(result.facts_a), _known(result.facts_b)
    found = [Fact(k, (_value(left.get(k)), _value(right.get(k)))) for k in dict.fromkeys([*left, *right])]
    return tuple(sorted(found, key=lambda f: (not f.differs, f.label in _ASIDE)))


def _known(facts: Semantics) -> dict[str, Any]:
    return dict(facts.known())


def _value(value: Any) -> Value:
    if isinstance(value, (tuple, list)):
        return " x ".join(str(v) for v in value)
    return value if value is None or isinstance(value, (str, bool, int, float)) else str(value)


def _stages(result: Result) -> Section:
    columns = (
        Column("stage", "stage"),
        Column("finding", "finding"),
        Column("runs", "runs", "count"),
        Column("seconds", "took", "seconds"),
    )
    rows = tuple(
        Row(
            (s.title, finding_of(s), None if s.why_skipped else s.runs, None if s.why_skipped else s.seconds),
            s.status if s.key not in ("where", "why") or s.status == "skip" else "info",
        )
        for s in result.stages
    )
    return Section("stages", "Stages", columns, rows)


def _worst(result: Result) -> Section | None:
    """Return the rows that fail and the warnings, the failures first; None when there are none."""
    shown, hidden = [], 0
    for s in result.stages:
        if s.key in ("where", "why"):
            continue
        bad = [r for r in s.rows if r.status == "fail"] + [r for r in s.rows if r.status == "warn"]
        shown += [(s, r) for r in bad[:WORST]]
        hidden += len(bad[WORST:])
    if not shown:
        return None
    columns = (Column("stage", "stage"), Column("row", "row"), Column("finding", "finding"))
    rows = tuple(Row((s.key, r.name, r.detail), r.status) for s, r in shown)
    more = (f"and {hidden} more; -v shows them",) if hidden else ()
    where = (result.where.sentence,) if result.where is not None else ()
    return Section("worst", "What is off", columns, rows, (*more, *where))


def _stage(stage: Stage) -> dict[str, Any]:
    rows = [
        {"name": r.name, "status": r.status, "detail": r.detail, "blame": r.blame, "values": dict(r.values)}
        for r in stage.rows
    ]
    return {
        "key": stage.key, "title": stage.title, "status": stage.status, "rows": rows, "notes": list(stage.notes),
        "seconds": stage.seconds, "runs": stage.runs, "why_skipped": stage.why_skipped, "measured": _measured(stage),
    }  # fmt: skip


def _measured(stage: Stage) -> list[dict[str, Any]]:
    """Return every value that was compared: in float64 the gap between the sides, else the error of each."""
    data = stage.data
    if "gaps" in data:
        kept = ("kind", "name", "rel_rms", "max_abs", "max_rel", "cosine", "scale", "min_tolerance")
        return [{**{k: getattr(g, k) for k in kept}, "limit": data["threshold"]} for g in data["gaps"]]
    if "ratios" not in data:
        return []
    own = {g.key: g for g in data["a"]}
    return [
        {
            "kind": g.kind, "name": g.name, "error_a": own[g.key].rel_rms, "error_b": g.rel_rms,
            "ratio": data["ratios"][g.key], "limit": data["limits"][g.kind], "max_abs": g.max_abs,
            "max_rel": _or_none(g.max_rel), "cosine": g.cosine, "min_tolerance": _or_none(g.min_tolerance),
        }
        for g in data["b"]
        if g.key in data["ratios"]
    ]  # fmt: skip


def _or_none(figure: float) -> float | None:
    return None if math.isnan(figure) else figure


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return [_plain(v) for v in value] if isinstance(value, tuple) else value
