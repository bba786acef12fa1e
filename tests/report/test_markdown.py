"""Markdown: tables that hold together whatever a name has in it."""

from __future__ import annotations

import re

from vitconv.report import Report
from vitconv.report.markdown import as_markdown


def test_the_parts_are_there(full: Report) -> None:
    text = as_markdown(full)
    assert text.startswith("# a.safetensors against b.pth\n\n**differs**: The outputs part by 2.1e-4.\n")
    assert "| eps | 1e-6 | 1e-5 |" in text
    assert "## Same function?" in text
    assert "| stage | error | time | status | detail |\n| --- | ---: | ---: | --- | --- |" in text
    assert "| logits | 2.1e-4 | 1.25 s | FAIL | first apart at blocks.0.norm1 |" in text
    assert "| `embed.pos` | 86.6 MB |" in text
    assert "Decided in float64." in text
    assert text.endswith("## Command\n\n    vitconv verify a.safetensors b.pth\n")


def test_every_line_of_a_table_has_the_same_cells(full: Report) -> None:
    tables = [block for block in as_markdown(full).split("\n\n") if block.startswith("|")]
    assert len(tables) == 4
    for table in tables:
        cells = {len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}
        assert len(cells) == 1


def test_a_hostile_name_is_escaped(full: Report) -> None:
    text = as_markdown(full)
    assert "<script>" not in text.replace("\\<script\\>", "")
    assert "\\|\\`\\*\\_" in text
