"""A report as Markdown, for issues and pull requests."""

from __future__ import annotations

import re

from vitconv.report.document import Report
from vitconv.report.table import Grid, fact_grid, grid
from vitconv.report.values import written

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~])")


def as_markdown(report: Report) -> str:
    """Return the report as Markdown with pipe tables; what comes from files is escaped or set as code."""
    blocks = [f"# {_escaped(written(report.title))}"]
    if report.verdict:
        word, sentence = _escaped(written(report.verdict.word)), _escaped(written(report.verdict.sentence))
        blocks.append(f"**{word}**" + (f": {sentence}" if sentence else ""))
    if report.facts:
        blocks.append(_table(fact_grid(report.facts, report.sides)))
    for section in report.sections:
        blocks.append(f"## {_escaped(written(section.title))}")
        if section.rows:
            blocks.append(_table(grid(section)))
        blocks += [_escaped(written(note)) for note in section.notes]
    if report.environment:
        blocks += ["## Environment", _table(fact_grid(report.environment, ()))]
    if report.command:
        blocks += ["## Command", f"    {written(report.command)}"]
    return "\n\n".join(blocks) + "\n"


def _table(cells: Grid) -> str:
    lines = [
        "| " + " | ".join(_escaped(title) for title in cells.titles) + " |",
        "| " + " | ".join("---:" if right else "---" for right in cells.right) + " |",
    ]
    for line in cells.lines:
        shown = [_code(cell) if code else _escaped(cell) for cell, code in zip(line, cells.code, strict=True)]
        lines.append("| " + " | ".join(shown) + " |")
    return "\n".join(lines)


def _escaped(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", text)


def _code(text: str) -> str:
    # A pipe ends a table cell even inside code; a backtick ends the code.
    if not text or text == "-" or "`" in text:
        return _escaped(text)
    return "`" + text.replace("|", "\\|") + "`"
