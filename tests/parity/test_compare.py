"""Gaps between traces: every way to part is seen, and noise is not."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from vitconv.parity.compare import gaps, gaps_each, missing, pooled, whole
from vitconv.parity.tolerance import SAME_FUNCTION
from vitconv.parity.trace import Trace


def trace_of(**parts) -> Trace:
    g = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=g, dtype=torch.float64)

    made = {
        "taps": {"embed": draw(2, 5, 4), "blocks.0": draw(2, 5, 4)},
        "tap_grads": {"embed": draw(2, 5, 4), "blocks.0": draw(2, 5, 4)},
        "grads": {"norm.weight": draw(4), "blocks.0.attn.k.bias": 1e-17 * draw(4), "input": draw(2, 3, 4, 4)},
        "output": draw(2, 3),
    }
    return Trace("A", "fp64", "coloured", **{**made, **parts})


def changed(t: Trace, part: str, name: str, change) -> Trace:
    if part == "output":
        return dataclasses.replace(t, output=change(t.output))
    return dataclasses.replace(t, **{part: {n: change(x) if n == name else x for n, x in getattr(t, part).items()}})


def one(x: torch.Tensor, by: float) -> torch.Tensor:
    y = x.clone()
    y.view(-1)[1] += by
    return y


PLACES = [
    ("taps", "blocks.0", "tap"),
    ("output", "output", "output"),
    ("tap_grads", "embed", "tap-grad"),
    ("grads", "norm.weight", "grad"),
    ("grads", "input", "grad"),
]


@pytest.mark.parametrize(("part", "name", "kind"), PLACES, ids=[f"{p}/{n}" for p, n, _ in PLACES])
@pytest.mark.parametrize("by", [1e-6, 1.0, math.nan, math.inf, -math.inf])
def test_one_element_off_is_seen_where_it_is(part, name, kind, by):
    a = trace_of()
    found = {g.key: g for g in gaps(a, changed(a, part, name, lambda x: one(x, by)))}
    off = [key for key, g in found.items() if not g.rel_rms <= SAME_FUNCTION]
    assert off == [(kind, name)]
    gap = found[kind, name]
    assert gap.finite_a
    assert gap.finite_b == math.isfinite(by)
    if math.isfinite(by):
        assert gap.max_abs == pytest.approx(by)


def test_nan_in_the_same_place_on_both_sides_is_no_agreement():
    a = trace_of()
    b = changed(a, "taps", "embed", lambda x: one(x, math.nan))
    gap = next(g for g in gaps(b, b) if g.name == "embed" and g.kind == "tap")
    assert not gap.finite_a
    assert gap.rel_rms == math.inf


def test_equal_traces_have_no_gap():
    assert all(g.rel_rms == 0 and g.cosine == pytest.approx(1) for g in gaps(trace_of(), trace_of()) if g.scale > 1e-9)


def test_a_gradient_that_is_zero_in_exact_arithmetic_is_measured_against_its_neighbours():
    a = trace_of()
    b = changed(a, "grads", "blocks.0.attn.k.bias", lambda x: -3 * x)
    gap = next(g for g in gaps(a, b) if g.name == "blocks.0.attn.k.bias")
    assert gap.rel_rms < 1e-12
    assert gap.max_rel == pytest.approx(4)
    # ... and a real one there is seen.
    b = changed(a, "grads", "blocks.0.attn.k.bias", lambda x: x + 1e-9)
    assert next(g for g in gaps(a, b) if g.name == "blocks.0.attn.k.bias").rel_rms > SAME_FUNCTION


def test_the_smallest_tolerance_is_the_one_that_torch_would_need():
    a = trace_of()
    b = changed(a, "output", "output", lambda x: x * (1 + 1e-3) + 1e-4)
    t = next(g for g in gaps(a, b) if g.kind == "output").min_tolerance
    assert torch.allclose(b.output, a.output, rtol=t * 1.0001, atol=t * 1.0001)
    assert not torch.allclose(b.output, a.output, rtol=t * 0.9999, atol=t * 0.9999)


def test_a_constant_is_noticed():
    a = trace_of()
    b = changed(a, "taps", "blocks.0", torch.ones_like)
    gap = next(g for g in gaps(a, b) if g.name == "blocks.0")
    assert (gap.constant_a, gap.constant_b) == (False, True)


def test_nothing_in_common_is_an_error():
    a = trace_of()
    b = dataclasses.replace(a, taps={}, tap_grads={}, grads={})
    # The output is always there: two traces have that at least.
    assert [g.kind for g in gaps(a, b)] == ["output"]


def test_another_shape_is_as_far_apart_as_can_be():
    a = trace_of(taps={}, tap_grads={}, grads={}, output=torch.zeros(2, 3))
    b = trace_of(taps={}, tap_grads={}, grads={}, output=torch.zeros(2, 4))
    (gap,) = gaps(a, b)
    assert gap.rel_rms == math.inf and gap.finite
    assert gap.shapes == "shapes [2, 3] and [2, 4]"
    (whole_,) = pooled([gaps(a, a), gaps(a, b)])
    assert whole_.rel_rms == math.inf and whole_.shapes


def test_what_only_one_has_is_listed():
    a = trace_of()
    b = dataclasses.replace(trace_of(grads={}), side="B")
    assert missing(a, b) == {"grad only of A": ("norm.weight", "blocks.0.attn.k.bias", "input")}


def test_inputs_are_pooled_as_one():
    a = trace_of()
    b = changed(a, "output", "output", lambda x: x + 0.1)
    (gap,) = [g for g in pooled([gaps(a, b), gaps(a, a)]) if g.kind == "output"]
    first = next(g for g in gaps(a, b) if g.kind == "output")
    assert gap.rel_rms == pytest.approx(first.rel_rms / 2**0.5)
    assert gap.max_abs == first.max_abs
    sick = changed(a, "output", "output", lambda x: one(x, math.nan))
    (gap,) = [g for g in pooled([gaps(a, a), gaps(a, sick)]) if g.kind == "output"]
    assert gap.rel_rms == math.inf
    assert not gap.finite_b


def test_all_gradients_together_leave_the_input_out():
    a = trace_of()
    error, size = whole(gaps(a, changed(a, "grads", "input", lambda x: x + 1)))
    assert error == 0
    assert size == pytest.approx(float(a.grads["norm.weight"].norm()))


def test_several_at_once_are_compared_as_one_by_one():
    a = trace_of()
    b = changed(a, "grads", "norm.weight", lambda x: one(x, 1e-3))
    c = changed(trace_of(tap_grads={}), "taps", "embed", lambda x: one(x, math.nan))
    d = changed(a, "output", "output", lambda x: x[:, :2])
    for found, other in zip(gaps_each(a, [b, c, d]), (b, c, d), strict=True):
        assert [repr(g) for g in found] == [repr(g) for g in gaps(a, other)]


def test_what_decides_does_not_depend_on_whether_single_elements_are_looked_at():
    a = trace_of()
    b = changed(a, "grads", "norm.weight", lambda x: one(x, 1e-3))
    (whole_,), (brief,) = gaps_each(a, [b]), gaps_each(a, [b], ("tap", "output"))
    for one_, other in zip(whole_, brief, strict=True):
        unknown = one_.max_abs > 0 and one_.kind in ("tap-grad", "grad")
        assert math.isnan(other.max_rel) == math.isnan(other.min_tolerance) == unknown
        same = dataclasses.replace(other, max_rel=one_.max_rel, min_tolerance=one_.min_tolerance)
        assert same == one_
    alike = gaps_each(a, [a], ("tap", "output"))[0]
    for parts in ([brief, alike], [alike, brief]):
        assert math.isnan(next(g for g in pooled(parts) if g.name == "norm.weight").min_tolerance)
    joined = {g.key: g for g in pooled([brief, brief])}
    assert joined["grad", "norm.weight"].max_abs == pytest.approx(1e-3)
    assert math.isnan(joined["grad", "norm.weight"].min_tolerance)
