"""JUnit XML: what a CI system counts."""

from __future__ import annotations

from xml.etree import ElementTree

from vitconv.report import Column, Report, Row, Section, Verdict
from vitconv.report.junit import as_junit


def test_a_suite_per_section_and_a_case_per_row(full: Report) -> None:
    root = ElementTree.fromstring(as_junit(full))
    assert [(suite.get("name"), suite.get("tests")) for suite in root] == [
        ("verdict", "1"),
        ("Same function?", "4"),
        ("Names", "2"),
    ]
    assert (root.get("tests"), root.get("failures"), root.get("skipped")) == ("7", "2", "1")


def test_failures_skips_and_warnings(full: Report) -> None:
    root = ElementTree.fromstring(as_junit(full))
    cases = {case.get("name"): case for case in root.iter("testcase")}
    failure = cases["logits"].find("failure")
    assert failure is not None
    assert failure.get("message") == "first apart at blocks.0.norm1"
    assert failure.text == "stage: logits\nerror: 2.1e-4\ntime: 1.25 s"
    assert list(cases["mapped"]) == []
    skipped = cases["onnx"].find("skipped")
    assert skipped is not None
    assert skipped.get("message") == "onnxruntime is not installed"
    assert "warning: one of 12" in (cases["gradients"].findtext("system-out") or "")


def test_a_no_without_a_failing_row_still_fails() -> None:
    report = Report(
        "vitconv.verify",
        "x",
        verdict=Verdict("differs", "fail", "nothing was compared"),
        sections=(Section("s", "S", (Column("a", "a"),), (Row(("fine",), "ok"),)),),
    )
    root = ElementTree.fromstring(as_junit(report))
    assert root.get("failures") == "1"


def test_a_hostile_name_is_legal_xml(full: Report) -> None:
    names = [case.get("name") for case in ElementTree.fromstring(as_junit(full)).iter("testcase")]
    assert "<script>alert('x')</script>|`*_\\x1b[31m&\\u202e" in names
