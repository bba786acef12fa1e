"""The document: what cannot be a report is refused when it is made."""

from __future__ import annotations

import pytest

from vitconv.report import Column, Fact, Report, Row, Section, worst


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        ([], "info"),
        (["info", "skip"], "skip"),
        (["skip", "ok", "info"], "ok"),
        (["ok", "warn", "skip"], "warn"),
        (["warn", "fail", "ok"], "fail"),
    ],
)
def test_the_worst_status_wins(statuses, expected: str) -> None:
    assert worst(statuses) == expected
    assert worst(reversed(statuses)) == expected


@pytest.mark.parametrize("cells", [("a",), ("a", 1, 2)], ids=["too-few", "too-many"])
def test_a_row_has_one_cell_per_column(cells) -> None:
    with pytest.raises(ValueError, match=r"section 'parts': expected 2 cells, got \('a'"):
        Section("parts", "Parts", (Column("a", "a"), Column("b", "b")), (Row(cells),))


@pytest.mark.parametrize("keys", [("a", "a"), ("a", "status"), ("detail", "a")])
def test_column_keys_are_different_and_not_reserved(keys) -> None:
    with pytest.raises(ValueError, match="must be different, and not status or detail"):
        Section("parts", "Parts", tuple(Column(key, key) for key in keys))


def test_data_cannot_take_a_reserved_name() -> None:
    with pytest.raises(ValueError, match=r"reserved names \['sections', 'verdict'\]"):
        Report("vitconv.x", "x", data={"verdict": 1, "sections": 2, "where": 3})


@pytest.mark.parametrize(
    ("sides", "values"), [((), (1, 2)), (("a", "b"), (1,)), (("a",), ())], ids=["two-for-one", "one-for-two", "none"]
)
def test_a_fact_has_one_value_per_side(sides, values) -> None:
    with pytest.raises(ValueError, match="fact 'eps' has"):
        Report("vitconv.x", "x", sides=sides, facts=(Fact("eps", values),))


def test_a_fact_knows_whether_the_sides_differ() -> None:
    assert Fact("eps", (1e-6, 1e-5)).differs
    assert not Fact("eps", (1e-6, 1e-6)).differs
    assert not Fact("eps", (1e-6,)).differs
