"""The page of `vitconv check`: what is wrong stands first, in the table and among the charts."""

from __future__ import annotations

from typing import Any

import pytest

from vitconv.checks.base.run import run_checks, verdict
from vitconv.cli.check import charts_of, report
from vitconv.registry import CHECKS, load
from vitconv.report.html import as_html

CHECKED = ("facts", "attention", "gradient-profile", "stream-growth")


def made(context: Any) -> tuple[Any, tuple[Any, ...]]:
    outcomes = run_checks(context, [load(CHECKS, name) for name in CHECKED])
    return report(context, outcomes, *verdict(outcomes)), charts_of(outcomes)


def test_what_is_wrong_comes_first(network: Any) -> None:
    document, charts = made(network("kv_normalised=false", "depth=3"))
    rows = document.sections[0].rows
    bad = [row.status == "fail" for row in rows]
    assert sum(bad) == 2
    assert bad == sorted(bad, reverse=True)
    assert document.verdict.sentence.startswith("2 errors, 0 warnings, 4 checks")
    # Of what else holds the order is the checks' own.
    names = [row.cells[0] for row, wrong in zip(rows, bad, strict=True) if not wrong]
    assert names == sorted(names, key=CHECKED.index)
    assert [section.status for section in charts] == ["fail", "info", "info"]
    assert charts[0].key == "stream-growth"
    # Exponents of both branches and the limit, on one plain scale.
    powers = charts[0].charts[0]
    assert [s.name for s in powers.series] == ["power of attn", "power of mlp", "limit"]
    assert not powers.log
    assert "un-normalised" in as_html(document) and 'class="facts one"' in as_html(document)


@pytest.mark.parametrize(
    ("more", "words"), [((), "0 errors, 0 warnings"), (("kv_normalised=false",), "1 error, 0 warnings, 1 check")]
)
def test_counts_are_said_in_the_singular_too(more: tuple[str, ...], words: str, network: Any) -> None:
    context = network(*more)
    outcomes = run_checks(context, [load(CHECKS, "facts")])
    assert words in report(context, outcomes, *verdict(outcomes)).verdict.sentence  # type: ignore[union-attr]
