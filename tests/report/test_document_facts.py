"""Facts of two sides: what differs, and what is merely not known."""

from __future__ import annotations

import pytest

from vitconv.report import Fact

CASES = {
    (1, 2): True, (1, 1): False, (1, None): False, (None, 1): False, (None, None): False, (None, 1, 2): True, (): False,
}  # fmt: skip


@pytest.mark.parametrize("values", CASES)
def test_a_value_that_is_not_known_is_no_other_value(values):
    assert Fact("norm_eps", values).differs is CASES[values]
