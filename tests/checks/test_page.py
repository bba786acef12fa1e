"""docs/checks.md is what the checks say, and every check says all there is to say."""

from __future__ import annotations

from pathlib import Path

import pytest

from vitconv.checks.base.check import COSTS, Check
from vitconv.checks.base.page import page
from vitconv.checks.base.run import all_checks, limits_of
from vitconv.errors import UsageError


def test_the_page_is_not_stale() -> None:
    path = Path(__file__).parents[2] / "docs/checks.md"
    assert path.read_text(encoding="utf-8") == page(), "run: python -m vitconv.checks.base.page docs/checks.md"


@pytest.mark.parametrize("check", all_checks(), ids=lambda c: c.id)
def test_a_check_says_what_why_and_what_to_do(check: Check) -> None:
    assert check.title.endswith("?")
    assert check.cost in COSTS
    assert all((check.measures, check.threshold, check.advice))


def test_a_limit_that_does_not_exist_is_refused() -> None:
    with pytest.raises(UsageError, match="no threshold"):
        limits_of(all_checks()[0], {"nothing": 1.0})
