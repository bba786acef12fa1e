"""A section as a grid of written cells, the common middle of the text, Markdown and HTML forms."""

from __future__ import annotations

from vitconv.record import dataclass
from vitconv.report.document import Fact, Section, Status
from vitconv.report.values import is_numeric, written

MARKS: dict[Status, str] = {"ok": "ok", "info": "", "skip": "skipped", "warn": "WARN", "fail": "FAIL"}


@dataclass(frozen=True)
class Grid:
    """Written cells: titles, whether a column is set to the right or as code, the lines and their status."""

    titles: tuple[str, ...]
    right: tuple[bool, ...]
    code: tuple[bool, ...]
    lines: tuple[tuple[str, ...], ...]
    statuses: tuple[Status, ...]


def grid(section: Section) -> Grid:
    """Return the section's cells, with columns for status and details where any row has them."""
    titles = [column.title for column in section.columns]
    right = [is_numeric(column.form) for column in section.columns]
    code = [column.form == "code" for column in section.columns]
    marked = any(row.status != "info" for row in section.rows)
    detailed = any(row.detail for row in section.rows)
    lines = []
    for row in section.rows:
        line = [written(cell, column.form) for cell, column in zip(row.cells, section.columns, strict=True)]
        line += [MARKS[row.status]] if marked else []
        line += [written(row.detail)] if detailed else []
        lines.append(tuple(line))
    extra = (["status"] if marked else []) + (["detail"] if detailed else [])
    return Grid(
        titles=(*titles, *extra),
        right=(*right, *(False for _ in extra)),
        code=(*code, *(False for _ in extra)),
        lines=tuple(lines),
        statuses=tuple(row.status for row in section.rows),
    )


def fact_grid(facts: tuple[Fact, ...], sides: tuple[str, ...]) -> Grid:
    """Return the facts as cells, one column per side; titles are empty when there is one side only."""
    return Grid(
        titles=("", *(written(side) for side in sides)) if sides else ("", ""),
        right=(False,) * (1 + max(1, len(sides))),
        code=(False,) * (1 + max(1, len(sides))),
        lines=tuple((written(fact.label), *(written(value, fact.form) for value in fact.values)) for fact in facts),
        statuses=tuple("warn" if fact.differs else "info" for fact in facts),
    )
