"""Recipes K of half precision that need one network, by name. K04, K07 and K11: tests/recipes/test_k_kernels.py."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch


def scaled(context: Any, name: str, factor: float) -> Any:
    with torch.no_grad():
        context.network.module.get_parameter(name).mul_(factor)
    return context


@pytest.mark.parametrize(("block", "factor"), [(2, 300.0), (3, 300.0), (1, 3e6)])
def test_k01_k17_the_first_block_near_the_range_is_named(block: int, factor: float, network: Any, check: Any) -> None:
    """fc2 times 300: the stream of that block stands out; past 65504 it is an error that says bfloat16."""
    name = f"blocks.{block}.mlp.down.weight"
    found = check("signals", scaled(network(), name, factor))
    text = " ".join(f.text for f in found.findings if f.level in ("warn", "error"))
    assert f"blocks.{block}" in text
    assert not any(f"blocks.{j}." in text for j in range(block))
    head = check("fp16-headroom", scaled(network(), name, 1e7))
    assert head.level == "error"
    assert f"blocks.{block}.mlp" in head.findings[0].text
    assert "bfloat16" in " ".join([head.check.advice, *(f.advice for f in head.findings)])


def test_k02_an_overflow_without_half_precision_is_not_blamed_on_it(network: Any, check: Any) -> None:
    context = scaled(scaled(network(), "blocks.1.mlp.up.weight", 1e20), "blocks.1.mlp.down.weight", 1e20)
    found = check("fp16-headroom", context)
    assert found.level == "error"
    signals = check("signals", context)
    assert signals.level == "error"
    assert "blocks.1" in " ".join(f.text for f in signals.findings)


@pytest.mark.parametrize(("dtype", "level"), [(torch.float16, "error"), (torch.bfloat16, "warn")])
def test_k08_an_optimiser_on_half_precision_parameters(
    dtype: torch.dtype, level: str, network: Any, check: Any, faults: Any
) -> None:
    """Adam's eps 1e-8 is zero there: a gradient of 1e-5 gives infinity, one of 0 gives NaN."""
    p = torch.zeros(2, dtype=torch.float16)
    moments = torch.tensor([1e-5, 0.0], dtype=torch.float16)
    step = moments / ((moments * moments).sqrt() + torch.tensor(1e-8, dtype=torch.float16))
    assert not torch.isfinite(p - step).all()
    context = network()
    halved = dataclasses.replace(context, weights={n: t.to(dtype) for n, t in context.canonical.items()})
    found = faults(check("facts", halved))
    assert [f.level for f in found] == [level]


def test_k10_the_dtype_of_each_kind_of_layer_is_said(network: Any, check: Any) -> None:
    context = network()
    mixed = {n: t if "norm" in n else t.half() for n, t in context.canonical.items()}
    found = check("facts", dataclasses.replace(context, weights=mixed))
    text = " ".join(f.text for f in found.findings)
    assert "float16" in text


@pytest.mark.parametrize(
    ("steps", "verdict"),
    [
        (["clean"] * 50 + ["overflow"] + ["clean"] * 49, "isolated"),
        (["clean"] * 99 + ["overflow"], "isolated"),
        (["clean"] * 40 + ["overflow"] * 6, "collapse"),
        (["clean"] * 40 + ["forward"] * 2, "forward"),
    ],
    ids=["k14 one in 100", "k14 the last one", "k13 gradients", "k13 forward"],
)
def test_k13_k14_one_overflow_is_normal_and_a_forward_pass_is_not(steps: Any, verdict: str) -> None:
    from vitconv.checks.base.scaler import judge

    assert judge(steps).verdict == verdict
