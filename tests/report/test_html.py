"""HTML: whole, self-contained, and safe with names out of foreign files."""

from __future__ import annotations

import dataclasses
import re
from html.parser import HTMLParser

import pytest

from vitconv.report import Column, Report, Row, Section
from vitconv.report.html import as_html


class Page(HTMLParser):
    """What a page consists of: tags with attributes, the text by tag, and whether every tag is closed."""

    VOID = frozenset({"meta", "input"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if data.strip() and "style" not in self.open:
            self.texts.append(data.strip())


def test_the_parts_are_there(full: Report) -> None:
    page = Page(as_html(full))
    assert page.open == []
    for text in (
        "a.safetensors against b.pth",
        "differs",
        "The outputs part by 2.1e-4.",
        "Same function?",
        "Decided in float64.",
        "first apart at blocks.0.norm1",
        "86 567 656",
        "2.14.1",
        "vitconv verify a.safetensors b.pth",
        "correct variants",
    ):
        assert text in page.texts
    classes = [attributes.get("class") for _, attributes in page.tags]
    assert "verdict fail" in classes
    rows = [attributes.get("class") for tag, attributes in page.tags if tag == "tr" and attributes]
    # The facts, of which eps differs; the stages; the names; the environment.
    assert rows == ["warn", "info", "fail", "ok", "skip", "warn", "info", "info", "info"]


def test_nothing_is_loaded_from_elsewhere(full: Report) -> None:
    text = as_html(full)
    assert re.findall(r"https?:|url\(|@import|<script|<link|<img|<iframe", text) == []
    for _, attributes in Page(text).tags:
        assert not {"src", "srcset", "action", "onclick", "onload"} & set(attributes)
        assert (attributes.get("href") or "#").startswith("#")
    assert "default-src 'none'" in text


def test_a_hostile_name_is_text(full: Report) -> None:
    page = Page(as_html(full))
    assert "<script>alert('x')</script>|`*_\\x1b[31m&\\u202e" in page.texts
    assert "script" not in [tag for tag, _ in page.tags]


def test_light_and_dark(full: Report) -> None:
    text = as_html(full)
    assert "prefers-color-scheme: dark" in text
    light, dark = (
        re.findall(r"(--[a-z0-9-]+): #", text.split("@media (prefers-color-scheme")[0]),
        re.findall(r"(--[a-z0-9-]+): #", text.split("@media (prefers-color-scheme")[1].split("* {")[0]),
    )
    assert light == dark
    assert len(light) == 17


@pytest.mark.parametrize(
    ("bad", "good", "filtered", "folded"),
    [(0, 10, False, False), (0, 60, False, True), (2, 8, False, False), (2, 20, True, False), (2, 60, True, False)],
)
def test_long_tables_show_what_needs_attention(bad: int, good: int, filtered: bool, folded: bool) -> None:
    rows = (*(Row((f"bad {k}",), "fail") for k in range(bad)), *(Row((f"good {k}",), "ok") for k in range(good)))
    report = Report("vitconv.x", "x", sections=(Section("s", "S", (Column("a", "a"),), rows),))
    text = as_html(report)
    assert ('class="only"' in text) is filtered
    assert ("<details>" in text) is folded
    assert all(f"<td>{row.cells[0]}</td>" in text for row in rows)


def test_the_smallest_report_is_a_page(full: Report) -> None:
    page = Page(as_html(Report("vitconv.x", "nothing")))
    assert "nothing" in page.texts
    assert "Facts" not in page.texts
    assert "Facts" in Page(as_html(dataclasses.replace(full, sections=()))).texts


def test_every_status_has_its_own_colour(full: Report) -> None:
    style = re.search(r"<style>(.*?)</style>", as_html(full), re.DOTALL)
    assert style is not None
    assert style.group(1).count("{") == style.group(1).count("}")
    for status in ("ok", "warn", "fail"):
        assert re.findall(rf"tr\.{status} td\.status {{ ([^}}]*) }}", style.group(1)) == [f"color: var(--{status});"]
    # Nothing that comes after may give all of them one colour.
    assert [rule for rule in re.findall(r"(?m)^td\.status {([^}]*)}", style.group(1)) if "color" in rule] == []


def detailed(*details: str, sortable: bool = False) -> Report:
    rows = tuple(Row((f"name {k}", f"text {k}"), "warn", detail) for k, detail in enumerate(details))
    columns = (Column("name", "name", "code"), Column("finding", "finding"))
    return Report("vitconv.check", "t", sections=(Section("s", "s", columns, rows, sortable=sortable),))


def test_what_few_rows_have_to_add_stands_below_them_and_takes_no_column() -> None:
    page = Page(as_html(detailed("", "what to do", "")))
    heads = [attributes for tag, attributes in page.tags if tag == "th"]
    assert len(heads) == 3, "name, finding, status"
    assert "detail" not in page.texts
    lines = [attributes.get("class") for tag, attributes in page.tags if tag == "tr" and attributes.get("class")]
    assert lines == ["warn", "warn", "warn more", "warn"]
    assert [a["colspan"] for tag, a in page.tags if tag == "td" and "colspan" in a] == ["2"]
    assert page.texts.index("text 1") < page.texts.index("what to do") < page.texts.index("text 2")


def test_a_table_that_is_sorted_keeps_a_row_a_row() -> None:
    page = Page(as_html(detailed("", "what to do", sortable=True)))
    assert "detail" in page.texts
    assert len([1 for tag, _ in page.tags if tag == "th"]) == 4
    assert not [1 for _, attributes in page.tags if "colspan" in attributes]
