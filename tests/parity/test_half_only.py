"""A side that does not run in float64: never called the same, and what rounding hides is said."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from vitconv.errors import Refused
from vitconv.parity.verify import verify
from vitconv.vit.activation import gelu_tanh, quick_gelu
from vitconv.vit.attention import Attention
from vitconv.vit.model import ViT

HALF: dict[str, Any] = {"precisions": ["fp32", "amp-bf16"], "inputs": ["coloured"]}


class HalfKernel(Attention):
    """An attention whose kernel knows half precision alone."""

    def forward(self, queries: Tensor, others: Tensor) -> Tensor:
        q, k, v = self._split(self.q(queries)), self._split(self.k(others)), self._split(self.v(others))
        if q.dtype not in (torch.float16, torch.bfloat16):
            raise RuntimeError("this kernel takes float16 and bfloat16")
        return self.out(((self.scale * q) @ k.transpose(-2, -1)).softmax(-1).matmul(v).transpose(1, 2).flatten(2))


class Rounding(torch.autograd.Function):
    """What passes a kernel that takes any dtype and computes in float32: out of torch's sight, as Triton's are."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return torch.from_numpy(x.detach().numpy().astype("float32")).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return torch.from_numpy(g.numpy().astype("float32")).to(g.dtype)


def float32_inside(scale: float = 1.0) -> Any:
    def change(module: Any) -> None:
        for block in module.blocks:
            act = block.mlp.act
            block.mlp.act = lambda x, act=act: Rounding.apply(act(x)) * scale

    return change


def half(module: Any) -> None:
    for block in module.blocks:
        block.attn.__class__ = HalfKernel


def with_act(f: Any) -> Any:
    def change(module: Any) -> None:
        half(module)
        for block in module.blocks:
            block.mlp.act = f

    return change


@pytest.mark.slow
def test_a_side_in_half_precision_alone_is_never_the_same(live):
    result = verify(live(), live(half), **HALF)
    assert (result.verdict, result.exit_code) == ("undecided", 3)
    assert (
        "not compared in float64 (B does not run in float64: RuntimeError: this kernel takes float16 and bfloat16"
        in result.reason
    )
    assert "faults could not be excluded at this noise" in result.reason
    assert result.stage("function").why_skipped is not None
    assert "does not run so" in (result.stage("numerics-fp32").why_skipped or "")
    assert result.stage("numerics-amp-bf16").status == "ok"
    assert result.stage("sanity").status != "fail"
    limit = next(r for r in result.stage("why").rows if r.name == "detection limit")
    # An eps is far below bfloat16's rounding; another order of the rows is not.
    assert "eps-final-1e-12" in limit.values["undetectable"]
    assert "qkv-order-kqv" in result.cause.excluded


@pytest.mark.slow
@pytest.mark.parametrize(("act", "name"), [(quick_gelu, "activation-quick-gelu"), (gelu_tanh, None)])
def test_a_fault_below_the_noise_is_named_or_said_to_be_open(act, name, live):
    result = verify(live(), live(with_act(act)), **HALF)
    if name is None:
        assert result.verdict == "undecided"
        assert "activation-gelu-tanh" in result.cause.undetectable
        return
    assert (result.verdict, result.exit_code) == ("differs", 1), result.reason
    assert name in {n for found in (result.cause.found, *result.cause.others) for n in found}
    assert not result.cause.proven


def test_a_baseline_in_half_precision_alone_is_undecided(live):
    result = verify(live(half), live(), **{**HALF, "skip": ["why"]})
    assert result.verdict == "undecided"
    assert "make it B" in (result.stage("numerics-amp-bf16").why_skipped or "")


class Broken(ViT):
    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        raise RuntimeError("no such kernel")


class BrokenUnderAutocast(ViT):
    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        if torch.is_autocast_enabled("cuda"):
            raise RuntimeError("no such kernel")
        return super().forward(*args, **kwargs)


def test_a_side_that_runs_in_nothing_is_refused_by_name(live):
    with pytest.raises(Refused, match=r"B .*does not run: RuntimeError: no such kernel"):
        verify(live(), live(lambda m: setattr(m, "__class__", Broken)), **HALF)


def test_a_precision_that_a_side_does_not_run_in_is_no_agreement(live):
    result = verify(live(), live(lambda m: setattr(m, "__class__", BrokenUnderAutocast)), **HALF)
    assert result.stage("function").status == "ok"
    assert (result.verdict, result.exit_code) == ("undecided", 3)
    assert "does not run in amp-bf16: RuntimeError: no such kernel" in result.reason


@pytest.mark.slow
def test_with_autocast_alone_it_is_said_what_cannot_be_seen(live):
    """Both sides run in float64 and nobody looked: the limit is the same."""

    def change(module: Any) -> None:
        for block in module.blocks:
            block.mlp.act = gelu_tanh

    result = verify(live(), live(change), precisions=["amp-bf16"], skip=["function"], inputs=["coloured"])
    assert (result.verdict, result.exit_code) == ("undecided", 3)
    assert "not compared in float64 (asked to)" in result.reason
    assert "activation-gelu-tanh" in result.cause.undetectable
    assert verify(live(), live(change), precisions=["fp64"], inputs=["coloured"]).verdict == "differs"


FLOAT32: dict[str, Any] = {"precisions": ["fp32"], "inputs": ["coloured"], "skip": ["why"]}


def test_a_kernel_that_takes_float64_and_computes_in_float32_is_no_difference(live):
    result = verify(live(), live(float32_inside()), **FLOAT32)
    assert result.verdict == "undecided"
    said = result.stage("function").why_skipped or ""
    assert (
        "B does not run in float64: it takes float64 and rounds inside as float32 does, first at blocks.0.mlp" in said
    )
    assert result.stage("numerics-fp32").status == "ok"


def test_a_fault_beside_such_a_kernel_is_a_difference(live):
    result = verify(live(), live(float32_inside(1.01)), **FLOAT32)
    assert result.verdict == "differs"
    assert result.stage("numerics-fp32").status == "fail"


def test_a_baseline_with_such_a_kernel_is_to_be_the_other_side(live):
    result = verify(live(float32_inside()), live(), **FLOAT32)
    assert result.verdict == "undecided"
    assert "make it B" in (result.stage("numerics-fp32").why_skipped or "")


@pytest.mark.parametrize("eps", [2e-6, 1e-5])
def test_a_small_fault_in_float64_is_no_rounding(eps, live):
    def change(module: Any) -> None:
        for block in module.blocks:
            block.norm1.eps = eps

    assert verify(live(), live(change), **FLOAT32).verdict == "differs"
