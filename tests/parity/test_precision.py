"""What makes torch compute in a precision."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from vitconv.errors import UsageError
from vitconv.parity.precision import PRECISIONS, emulated, precision_of, running
from vitconv.parity.tf32 import round_tf32


def test_an_unknown_precision_names_the_known():
    with pytest.raises(UsageError, match="expected one of fp64, fp32, tf32"):
        precision_of("fp8")


@pytest.mark.parametrize("name", PRECISIONS)
def test_half_the_distance_between_numbers_is_what_is_said(name):
    p = precision_of(name)
    kind = torch.float16 if name == "tf32" else p.autocast or p.dtype
    assert p.unit == torch.finfo(kind).eps / 2


def test_what_is_emulated_is_said():
    said = {name: emulated(name, "cpu") for name in PRECISIONS}
    assert said["fp64"] is None
    assert said["fp32"] is None
    assert "rounded to 10 bits" in said["tf32"]
    assert "dtype policy on CPU" in said["amp-fp16"]
    assert all(emulated(name, "cuda") is None for name in PRECISIONS)


@pytest.mark.parametrize(
    ("x", "rounded"),
    [
        (1 + 2**-10, 1 + 2**-10),
        (1 + 2**-11, 1.0),
        (1 + 3 * 2**-11, 1 + 2**-9),
        (1 + 2**-11 + 2**-20, 1 + 2**-10),
        (-1 - 2**-11 - 2**-20, -1 - 2**-10),
        (0.0, 0.0),
        (float("inf"), float("inf")),
        (3e38, 1806 * 2.0**117),
    ],
)
def test_tf32_rounds_to_ten_bits_to_nearest_even(x, rounded):
    assert float(round_tf32(torch.tensor([x]))) == pytest.approx(rounded, rel=1e-6)
    # Ten bits are those of float16, in whose range the two agree.
    if abs(x) < 6e4:
        assert float(round_tf32(torch.tensor([x]))) == float(torch.tensor([x]).half())
    assert round_tf32(torch.tensor([float("nan")])).isnan().all()


@pytest.mark.parametrize("what", ["mm", "addmm", "bmm", "conv2d", "sdpa"])
def test_emulated_tf32_rounds_operands_forward_and_backward(what):
    g = torch.Generator().manual_seed(0)
    x = torch.randn(2, 4, 8, 8, generator=g)
    w = torch.randn(8, 8, generator=g)
    run = {
        "mm": lambda x: x.flatten(0, 2) @ w,
        "addmm": lambda x: F.linear(x.flatten(0, 2), w, w[0]),
        "bmm": lambda x: x.flatten(0, 1) @ x.flatten(0, 1),
        "conv2d": lambda x: F.conv2d(x, w.reshape(4, 4, 2, 2)),
        "sdpa": lambda x: F.scaled_dot_product_attention(x, x, x),
    }[what]

    def both(x: Tensor) -> tuple[Tensor, Tensor]:
        x = x.clone().requires_grad_()
        y = run(x)
        y.backward(torch.ones_like(y) * 1.2345)
        return y.detach(), x.grad

    with running("fp32", "cpu"):
        plain = both(x)
    with running("tf32", "cpu"):
        rounded = both(x)
    for p, r in zip(plain, rounded, strict=True):
        error = float((p - r).norm() / p.norm())
        assert 1e-5 < error < 2e-3


def test_float64_is_float64_where_the_code_asks_for_float32():
    x = torch.randn(3, 4, dtype=torch.float64)
    with running("fp64", "cpu") as mode, mode.forward():
        soft = F.softmax(x, -1, dtype=torch.float32).to(x.dtype)
        table = torch.arange(4) / 3 + x.float() + torch.zeros(4)
    assert torch.equal(soft, F.softmax(x, -1))
    assert torch.equal(table, torch.arange(4, dtype=torch.float64) / 3 + x)
    assert mode.lifted == ["softmax", "float"]
    assert torch.get_default_dtype() == torch.float32


def test_float32_has_tf32_off_and_the_switch_comes_back():
    before = torch.backends.cuda.matmul.allow_tf32
    from vitconv.parity.precision import _tf32

    with _tf32(True):
        assert torch.backends.cuda.matmul.allow_tf32
        with _tf32(False):
            assert not torch.backends.cuda.matmul.allow_tf32
            assert not torch.backends.cudnn.allow_tf32
        assert torch.backends.cuda.matmul.allow_tf32
    assert torch.backends.cuda.matmul.allow_tf32 == before
