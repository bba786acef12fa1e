"""A report as JUnit XML: one suite per section, one case per row, and one for the verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitconv.report.document import Report, Section, Status
from vitconv.report.values import written

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element


def as_junit(report: Report) -> str:
    """Return the report as JUnit XML.

    The verdict is a case of its own, so that a report whose answer is no fails even where no single row does.
    """
    from xml.etree.ElementTree import Element, SubElement, indent, tostring

    root = Element("testsuites", name=written(report.title))
    if report.verdict:
        suite = SubElement(root, "testsuite", name="verdict")
        _case(
            suite,
            "verdict",
            written(report.verdict.word),
            report.verdict.status,
            written(report.verdict.sentence),
        )
        _count(suite)
    for section in report.sections:
        suite = SubElement(root, "testsuite", name=written(section.title))
        _rows(suite, section)
        _count(suite)
    for total in ("tests", "failures", "skipped"):
        root.set(total, str(sum(int(suite.get(total, "0")) for suite in root)))
    indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + tostring(root, encoding="unicode") + "\n"


def _rows(suite: Element, section: Section) -> None:
    for row in section.rows:
        cells = [
            f"{column.title}: {written(cell, column.form)}"
            for column, cell in zip(section.columns, row.cells, strict=True)
        ]
        name = written(row.cells[0]) if row.cells else ""
        _case(suite, written(section.title), name, row.status, written(row.detail), "\n".join(cells))


def _case(suite: Element, group: str, name: str, status: Status, message: str, body: str = "") -> None:
    from xml.etree.ElementTree import SubElement

    case = SubElement(suite, "testcase", classname=group, name=name)
    if status == "fail":
        SubElement(case, "failure", message=message or "failed").text = body
    elif status == "skip":
        SubElement(case, "skipped", message=message)
    elif status == "warn":
        SubElement(case, "system-out").text = f"warning: {message}\n{body}"


def _count(suite: Element) -> None:
    suite.set("tests", str(len(suite)))
    suite.set("failures", str(len(suite.findall("./testcase/failure"))))
    suite.set("skipped", str(len(suite.findall("./testcase/skipped"))))
