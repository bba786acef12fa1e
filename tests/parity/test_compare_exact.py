"""Short cuts of the comparison must not hide what is there: denormal differences, overflow of squares, sparse NaN."""

from __future__ import annotations

import math

import pytest
import torch

from vitconv.parity.compare import gaps
from vitconv.parity.trace import Trace


def gap_of(a: torch.Tensor, b: torch.Tensor):
    (gap,) = gaps(*(Trace(side, "fp64", "x", {}, {}, {}, t) for side, t in (("A", a), ("B", b))))
    return gap


def test_a_difference_whose_square_underflows_is_seen():
    a = torch.zeros(4, dtype=torch.float64)
    b = a.clone()
    b[2] = 1e-300
    assert gap_of(a, a).max_abs == 0
    assert gap_of(a, b).max_abs == 1e-300


def test_values_whose_squares_overflow_are_finite():
    a = torch.tensor([1e200, -3e200, 2.0], dtype=torch.float64)
    found = gap_of(a, a * 2)
    assert found.finite_a and found.finite_b
    assert not found.rel_rms <= 1


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("side", ["a", "b"])
def test_one_value_that_is_not_finite_is_seen(bad, side):
    a = torch.linspace(1, 2, 1000, dtype=torch.float64)
    b = a.clone()
    (a if side == "a" else b)[777] = bad
    found = gap_of(a, b)
    assert (found.finite_a, found.finite_b) == (side != "a", side != "b")
    assert found.rel_rms == math.inf


def test_a_constant_is_one_number_everywhere():
    a = torch.full((9,), 3.0, dtype=torch.float64)
    b = a.clone()
    b[4] = 2.0  # the same at both ends
    found = gap_of(a, b)
    assert found.constant_a and not found.constant_b
