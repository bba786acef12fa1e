"""The audit of a checkpoint's weights, as sections of a report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitconv.inits.audit.audit import Audited
    from vitconv.report import Row, Section

_STATUS = {"fail": "fail", "warn": "warn", "info": "info"}


def sections(found: Audited) -> tuple[Section, ...]:
    """Return what was concluded, what is wrong, and what every kind of tensor holds."""
    from vitconv.report import Column, Row, Section

    best = found.fits[0]
    rows = [
        Row(("state", found.training.state, found.training.reason)),
        Row(("nearest init scheme", found.scheme, f"{best.good} of {len(best.outcomes)} tensors fit")),
    ]
    if found.bound is not None:
        rows.append(Row(("DeepNet's bound", f"{found.bound:.3g}", "1 is a matching pair of alpha and beta")))
    columns = (Column("what", "what"), Column("answer", "answer"), Column("why", "why"))
    findings = tuple(
        Row((f.id, f.text), _STATUS[f.level], f"what to do: {f.advice}" if f.advice else "")  # type: ignore[arg-type]
        for f in found.findings
    )
    kinds = (
        Column("tensor", "canonical tensor", "code"),
        Column("count", "tensors", "count"),
        Column("std", "std", "number"),
        Column("low", "lowest", "number"),
        Column("high", "highest", "number"),
        Column("expected", f"as {best.scheme.name} draws it"),
        Column("deviates", "deviate"),
    )
    return (
        Section("audit", "Audit of the weights", columns, tuple(rows)),
        Section(
            "findings",
            "What is wrong or worth knowing",
            (Column("finding", "finding", "code"), Column("text", "text")),
            findings,
            () if findings else ("nothing",),
        ),
        Section("distributions", "What each kind of tensor holds", kinds, _kinds(found)),
    )


def _kinds(found: Audited) -> tuple[Row, ...]:
    """Return one row per kind of tensor, layers collapsed."""
    from vitconv.layout.blocks import labelled
    from vitconv.layout.canonical import kind_of
    from vitconv.report import Row

    best = found.fits[0]
    groups: dict[tuple[str, str], list[str]] = {}
    for name in found.measured:
        groups.setdefault((kind_of(name), best.declared[name].text), []).append(name)
    rows: list[Any] = []
    for (kind, text), names in groups.items():
        some = [found.measured[name] for name in names]
        off = [name for name in names if name in best.misfits]
        # What was trained is no draw any more.
        trained = found.training.state in ("trained", "partly trained")
        why = f"{len(off)}: {best.misfits[off[0]].text}" if off and not trained else ""
        rows.append(
            Row(
                (
                    labelled(kind, names), len(names), sum(m.std for m in some) / len(some),
                    min(m.low for m in some), max(m.high for m in some), text, why,
                ),
                "warn" if off and not trained else "info",
            )
        )  # fmt: skip
    return tuple(rows)
