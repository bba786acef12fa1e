"""Moments are exact: against quadrature, against the public constants, against draws."""

from __future__ import annotations

import math

import pytest
import torch

from vitconv.inits.base.distribution import (
    Distribution,
    constant,
    cut_factor,
    fixed,
    lecun_normal,
    normal,
    torch_default,
    truncated_absolute,
    truncated_sigma,
    uniform,
    xavier_normal,
    xavier_uniform,
)
from vitconv.inits.base.draw import sample
from vitconv.inits.base.fans import conv_fans, flat_fans, fused_fans, linear_fans
from vitconv.inits.base.sincos import KINDS, Table

SOME = {
    "normal": normal(0.02),
    "cut-absolute": truncated_absolute(0.02),
    "cut-lopsided": truncated_absolute(0.5, -0.3, 1.0),
    "cut-1-sigma": truncated_sigma(0.02, 1.0),
    "cut-sqrt3": truncated_absolute(0.02, -(3**0.5) * 0.02, 3**0.5 * 0.02),
    "cut-2-sigma": truncated_sigma(0.02),
    "compensated": truncated_sigma(0.02, compensated=True),
    "uniform": uniform(0.1),
}


@pytest.mark.parametrize("d", SOME.values(), ids=SOME)
def test_moments_equal_quadrature(d: Distribution) -> None:
    low, high = max(d.low, -12 * (d.sigma or 1)), min(d.high, 12 * (d.sigma or 1))
    x = torch.linspace(low, high, 400_001, dtype=torch.float64)
    density = torch.ones_like(x) if d.family == "uniform" else torch.exp(-0.5 * ((x - d.centre) / d.sigma) ** 2)
    density /= torch.trapezoid(density, x)
    mean = float(torch.trapezoid(density * x, x))
    var = float(torch.trapezoid(density * (x - mean) ** 2, x))
    fourth = float(torch.trapezoid(density * (x - mean) ** 4, x))
    assert d.mean == pytest.approx(mean, abs=1e-9)
    assert d.std == pytest.approx(math.sqrt(var), rel=1e-6)
    assert d.kurtosis == pytest.approx(fourth / var**2, rel=1e-5)


@pytest.mark.parametrize("d", SOME.values(), ids=SOME)
def test_draws_have_the_moments(d: Distribution) -> None:
    x = sample(d, (600, 600), 5).double()
    assert float(x.std()) == pytest.approx(d.std, rel=0.005)
    assert float(x.mean()) == pytest.approx(d.mean, abs=0.006 * d.std)
    assert float(((x - x.mean()) ** 4).mean() / x.var() ** 2) == pytest.approx(d.kurtosis, rel=0.02)
    assert float(x.min()) >= d.low * 1.000001 if d.low < 0 else True
    assert float(x.max()) <= d.high * 1.000001


@pytest.mark.parametrize(
    ("cut", "factor", "kurtosis", "reach"),
    [(1.0, 0.53956, 1.9409, 1.8534), (3**0.5, 0.81464, 2.2293, 2.1262),
     (2.0, 0.87963, 2.3655, 2.2737), (3.0, 0.98658, 2.8289, 3.0408)],
    ids=["beit-pretraining", "xformers-timm", "tf", "3-sigma"],
)  # fmt: skip
def test_the_constants_of_the_usual_cuts(cut: float, factor: float, kurtosis: float, reach: float) -> None:
    d = truncated_sigma(1.0, cut)
    assert cut_factor(cut) == pytest.approx(factor, abs=1e-5)
    assert d.std == pytest.approx(factor, abs=1e-5)
    assert d.kurtosis == pytest.approx(kurtosis, abs=2e-3)
    assert d.reach == pytest.approx(reach, abs=1e-3)


def test_fans_by_each_rule() -> None:
    assert (linear_fans((8, 4)).fan_in, linear_fans((8, 4)).fan_out) == (4, 8)
    assert (flat_fans((32, 3, 4, 4)).fan_in, flat_fans((32, 3, 4, 4)).fan_out) == (48, 32)
    assert (conv_fans((32, 3, 4, 4)).fan_in, conv_fans((32, 3, 4, 4)).fan_out) == (48, 512)
    assert fused_fans((192, 192)).total == 768
    assert xavier_uniform(fused_fans((192, 192))).std == pytest.approx(
        xavier_normal(linear_fans((192, 192))).std / 2**0.5
    )
    assert torch_default(linear_fans((8, 192))).std == pytest.approx(1 / math.sqrt(3 * 192))
    assert lecun_normal(flat_fans((192, 3, 16, 16))).std == pytest.approx(768**-0.5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_sine_table_has_rms_of_root_half(kind: str) -> None:
    d = fixed(Table(kind, 4, 6, 64))
    values = sample(d, (24, 64), 0).double()
    assert float(values.square().mean()) == pytest.approx(0.5, rel=1e-6)
    assert float(values.std(correction=0)) == pytest.approx(d.std, rel=1e-6)
    # The first half is the columns': equal for patches in one column.
    assert torch.equal(values[0, :32], values[6, :32])
    assert not torch.equal(values[0], values[1])


def test_the_two_sine_tables_differ() -> None:
    assert not torch.allclose(Table("mae", 4, 4, 64).values(), Table("big_vision", 4, 4, 64).values(), atol=0.05)


def test_a_constant_has_no_spread() -> None:
    d = constant(0.1)
    assert (d.mean, d.std, d.exact) == (0.1, 0.0, True)
    assert float(sample(d, (3,), 0)[0]) == pytest.approx(0.1)
