"""K: what overflows, dies silently or turns to NaN in half precision, where our kernels and their references stand."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from vitconv.kernels.focused.module import Form
from vitconv.kernels.layer_norm.module import layer_norm
from vitconv.kernels.layer_norm.reference import forward as layer_norm_reference

HALF = torch.float16


def written_out(x: torch.Tensor, eps: float) -> torch.Tensor:
    """A LayerNorm by hand in the dtype of its input, as ConvNeXt's channels-first one was."""
    mean = x.mean(-1, keepdim=True)
    variance = (x - mean).pow(2).mean(-1, keepdim=True)
    return (x - mean) / torch.sqrt(variance + eps)


def test_k04_squares_that_overflow_give_a_constant_and_no_nan() -> None:
    """N(0, 400) in half: the variance is infinite, and the output exactly zero, which no search for NaN finds."""
    x = (400 * torch.randn(8, 64, generator=torch.Generator().manual_seed(0))).to(HALF)
    assert written_out(x, 1e-6).abs().max() == 0.0
    ours = layer_norm(x, None, None, 1e-6)
    assert ours.dtype == HALF
    exact = F.layer_norm(x.double(), (64,), eps=1e-6)
    assert (ours.double() - exact).abs().max() < 2e-3
    assert ours.abs().max() > 1.5


@pytest.mark.parametrize("spread", [6e4, 3e4], ids=["largest", "half-of-it"])
def test_k04_up_to_the_range_of_half_precision(spread: float) -> None:
    signs = torch.where(torch.arange(64) % 2 == 0, 1.0, -1.0)
    x = (spread * signs).to(HALF)[None]
    assert (layer_norm(x, None, None, 1e-6).double() - signs.double()).abs().max() < 1e-3


def test_k11_an_eps_that_half_precision_cannot_hold() -> None:
    """1e-12 is 0 in half: by hand a constant row is 0 / 0; with statistics in float32 it is zero, gradients too."""
    assert torch.tensor(1e-12, dtype=HALF) == 0.0
    x = torch.full((2, 32), 3.0, dtype=HALF, requires_grad=True)
    assert written_out(x.detach(), float(torch.tensor(1e-12, dtype=HALF))).isnan().all()
    y = layer_norm(x, None, None, 1e-12)
    y.sum().backward()
    assert torch.equal(y, torch.zeros_like(y))
    assert x.grad is not None
    assert x.grad.isfinite().all()


@pytest.mark.parametrize("eps", [1e-5, 1e-6, 1.6e-5])
def test_k11_eps_is_added_in_float32_whatever_the_input(eps: float) -> None:
    x = (1e-3 * torch.randn(4, 48, generator=torch.Generator().manual_seed(1))).to(HALF)
    y, _ = layer_norm_reference(x, None, None, eps, torch.float32)
    assert (y.double() - F.layer_norm(x.double(), (48,), eps=eps)).abs().max() < 1e-5


def attend(variant: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, power: float = 3) -> torch.Tensor:
    scale = torch.full((1, 1, q.shape[-1]), -1.0, dtype=q.dtype)
    return Form(variant=variant, power=power).attend(q, k, v, scale, None, 2, torch.zeros_like(q))


def hot(size: float, tokens: int = 49) -> list[torch.Tensor]:
    gen = torch.Generator().manual_seed(3)
    return [(size * torch.randn(1, tokens, 16, generator=gen)).to(HALF) for _ in range(3)]


def test_k07_cubes_of_46_are_infinite_and_the_norm_of_13_is_4090() -> None:
    assert torch.tensor(46.0, dtype=HALF).pow(3).isinf()
    cube = torch.tensor(13.28, dtype=HALF).pow(3)
    assert cube.isfinite()
    assert 2200 < cube < 2400


@pytest.mark.parametrize("size", [4.0, 16.0, 46.0])
def test_k07_published_formulations_in_half_and_ours(size: float) -> None:
    q, k, v = hot(size)
    exact = attend("stable", q.double(), k.double(), v.double())
    ours = attend("stable", q, k, v)
    assert ours.isfinite().all()
    # Half precision's own rounding of q, k and v aside, which is the power times one in 2048.
    assert (ours.double() - exact).norm() < 5e-3 * exact.norm()
    if size >= 16:
        assert not attend("original", q, k, v).isfinite().all()
        assert not attend("upstream-fix", q, k, v).isfinite().all()


def test_k07_gradients_under_the_usual_loss_scale() -> None:
    leaves = [x.requires_grad_() for x in hot(4.0, tokens=196)]
    y = attend("stable", *leaves)
    grad = (1e-4 * 65536 * torch.randn(y.shape, generator=torch.Generator().manual_seed(5))).to(HALF)
    y.backward(grad)
    assert all(x.grad is not None and x.grad.isfinite().all() for x in leaves)
    assert any(bool(x.grad.any()) for x in leaves if x.grad is not None)


def test_k07_heads_that_are_off_and_tokens_without_a_positive_channel() -> None:
    for power in (3, 8, 12):
        q, k, v = hot(1.0)
        q[..., :8] = -1.0
        k[:, 3] = -5.0
        leaves = [x.requires_grad_() for x in (q, k, v)]
        y = attend("stable", *leaves, power=power)
        y.sum().backward()
        assert y.isfinite().all()
        assert all(x.grad is not None and x.grad.isfinite().all() for x in leaves)
