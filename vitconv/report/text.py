"""A report as text: plain columns for files and pipes, rich tables on a terminal."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, TextIO

from vitconv.report.document import Report, Status
from vitconv.report.table import Grid, fact_grid, grid
from vitconv.report.values import written

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_STYLES: dict[Status, str] = {
    "ok": "green",
    "info": "",
    "skip": "dim",
    "warn": "yellow",
    "fail": "bold red",
}


def plain(report: Report) -> str:
    """Return the report in plain columns without colour; nothing is cut off, however wide."""
    blocks = [_head(report)]
    if report.facts:
        blocks.append(_columns(fact_grid(report.facts, report.sides)))
    for section in report.sections:
        block = [written(section.title)]
        if section.rows:
            block.append(_columns(grid(section)))
        block += [f"  {written(note)}" for note in section.notes]
        blocks.append("\n".join(block))
    if report.environment:
        blocks.append("environment\n" + _columns(fact_grid(report.environment, ())))
    if report.command:
        blocks.append(f"command: {written(report.command)}")
    return "\n\n".join(block for block in blocks if block) + "\n"


def print_text(report: Report, stream: TextIO) -> None:
    """Write the report to a stream: with rich where it is a terminal and rich is there, else plain."""
    if stream.isatty():
        try:
            from rich.console import Console
        except ImportError:
            pass
        else:
            console = Console(
                file=stream,
                highlight=False,
                markup=False,
                emoji=False,
                no_color=bool(os.environ.get("NO_COLOR")),
            )
            _print_rich(report, console)
            return
    text = plain(report)
    encoding = stream.encoding or "utf-8"
    stream.write(text.encode(encoding, "backslashreplace").decode(encoding))


def _head(report: Report) -> str:
    lines = [written(report.title)]
    if report.verdict:
        lines.append(_sentence(report))
    return "\n".join(lines)


def _sentence(report: Report) -> str:
    assert report.verdict is not None
    word, sentence = written(report.verdict.word), written(report.verdict.sentence)
    return f"{word}: {sentence}" if sentence else word


def _columns(cells: Grid) -> str:
    lines = list(cells.lines)
    headed = any(cells.titles)
    if headed:
        lines.insert(0, cells.titles)
    widths = [max(len(line[k]) for line in lines) for k in range(len(cells.titles))]
    if headed:
        lines.insert(1, tuple("-" * width for width in widths))
    return "\n".join(
        "  "
        + "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, cells.right, strict=True)
        ).rstrip()
        for line in lines
    )


def _print_rich(report: Report, console: Console) -> None:
    from rich.text import Text

    console.print(Text(written(report.title), style="bold"))
    if report.verdict:
        console.print(Text(_sentence(report), style=_STYLES[report.verdict.status]))
    if report.facts:
        console.print(_rich_table(fact_grid(report.facts, report.sides)))
    for section in report.sections:
        console.print()
        console.print(Text(written(section.title), style="bold"))
        if section.rows:
            console.print(_rich_table(grid(section)))
        for note in section.notes:
            console.print(Text(f"  {written(note)}", style="dim"))
    if report.environment:
        console.print()
        console.print(Text("environment", style="bold"))
        console.print(_rich_table(fact_grid(report.environment, ())))
    if report.command:
        console.print()
        console.print(Text(f"command: {written(report.command)}", style="dim"))


def _rich_table(cells: Grid) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, show_header=any(cells.titles), header_style="bold", pad_edge=False)
    for title, right, code in zip(cells.titles, cells.right, cells.code, strict=True):
        table.add_column(
            Text(title),
            justify="right" if right else "left",
            style="cyan" if code else "",
            overflow="fold",
            no_wrap=right,
        )
    for line, status in zip(cells.lines, cells.statuses, strict=True):
        table.add_row(*(Text(cell) for cell in line), style=_STYLES[status])
    return table
