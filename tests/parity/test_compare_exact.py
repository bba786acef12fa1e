"""Short cuts of the comparison must not hide what is there: denormal differences, overflow of squares, sparse NaN."""

from __future__ import annotations

import math

import pytest
import torch

from vitconv.parity.compare import distances, gaps
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
    assert found.rel_rms == pytest.approx(1.0)


def test_a_size_whose_square_overflows_does_not_make_a_difference_small():
    # The error's square is a number, that of the size is not: their ratio would be zero.
    a = torch.tensor([2e154, 1e150], dtype=torch.float64)
    b = torch.tensor([2.1e154, 1e150], dtype=torch.float64)
    found = gap_of(a, b)
    assert found.rel_rms == pytest.approx(0.05)


def test_figures_do_not_depend_on_how_many_are_looked_at_together(monkeypatch):
    from vitconv.parity import figures

    g = torch.Generator().manual_seed(0)
    a, b = torch.randn(1001, generator=g).double(), torch.randn(1001, generator=g).double()
    whole = gap_of(a, b)
    monkeypatch.setattr(figures, "AT_ONCE", 64)
    parts = gap_of(a, b)
    for name in ("rel_rms", "max_abs", "max_rel", "min_tolerance", "bias", "cosine", "error"):
        assert getattr(parts, name) == pytest.approx(getattr(whole, name), rel=1e-12)


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


@pytest.mark.parametrize("bad", [None, math.nan, math.inf])
def test_distances_are_the_errors_of_the_gaps(bad):
    a = torch.linspace(1, 2, 50, dtype=torch.float64)
    b = a * 1.25
    if bad is not None:
        b[7] = bad
    left, right = (Trace(side, "fp64", "x", {"embed": t}, {}, {"w": t}, t) for side, t in (("A", a), ("B", b)))
    assert distances(left, right) == pytest.approx({g.key: g.error for g in gaps(left, right)})


def test_figures_are_those_of_their_definitions_and_inputs_stay_as_they_are():
    a = torch.tensor([1.0, -2.0, 0.0, 4.0], dtype=torch.float64)
    b = torch.tensor([1.5, -2.0, 0.25, 3.0], dtype=torch.float64)
    kept = a.clone(), b.clone()
    found = gap_of(a, b)
    assert torch.equal(a, kept[0]) and torch.equal(b, kept[1])
    assert found.max_abs == 1.0
    assert found.max_rel == 0.25 / torch.finfo(torch.float64).tiny
    assert found.min_tolerance == 0.25  # 0.5 / 2, 0.25 / 1, 1 / 5
    assert found.error == pytest.approx((0.25 + 0.0625 + 1) ** 0.5)
    assert found.bias == pytest.approx(-0.0625 / (21 / 4) ** 0.5)
    assert found.rel_rms == pytest.approx(found.error / 21**0.5)


def test_nothing_at_all_is_no_gap():
    empty = torch.zeros(0, dtype=torch.float64)
    assert gap_of(empty, empty).rel_rms == 0.0
