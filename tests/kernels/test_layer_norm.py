"""Hold the LayerNorm reference: against torch, by gradcheck, its eps, its dtypes, and the module."""

import pytest
import torch
import torch.nn.functional as F

from vitconv.errors import Refused, UsageError
from vitconv.kernels import tolerance
from vitconv.kernels.layer_norm import reference
from vitconv.kernels.layer_norm.module import LayerNorm, layer_norm, plan

F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64


def draw(*shape, dtype=F64, seed=0, std=1.0, mean=0.0):
    return (torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * std + mean).to(dtype)


@pytest.mark.parametrize("eps", [1e-12, 1e-6, 1e-5, 1.6e-5])
@pytest.mark.parametrize("affine", [True, False], ids=["affine", "bare"])
def test_equals_torch_in_float64(eps, affine):
    x, grad = draw(3, 5, 24, std=0.03).requires_grad_(), draw(3, 5, 24, seed=3)
    weight, bias = (draw(24, seed=s).requires_grad_() for s in (1, 2))
    leaves = [x, weight, bias] if affine else [x]
    got, expected = layer_norm(*leaves, eps=eps), F.layer_norm(x, (24,), *leaves[1:], eps=eps)
    assert (got - expected).abs().max() < 1e-13
    for g, e in zip(torch.autograd.grad(got, leaves, grad), torch.autograd.grad(expected, leaves, grad), strict=True):
        assert (g - e).abs().max() <= 1e-12 * e.abs().max()


@pytest.mark.parametrize("affine", [True, False], ids=["affine", "bare"])
def test_gradcheck(affine):
    leaves = [draw(4, 7, std=0.5).requires_grad_(), draw(7, seed=1).requires_grad_(), draw(7, seed=2).requires_grad_()]
    assert torch.autograd.gradcheck(lambda *x: layer_norm(*x, eps=1e-3), leaves if affine else leaves[:1])


def test_gradcheck_sees_a_planted_fault(monkeypatch):
    right = reference.backward
    monkeypatch.setattr(reference, "backward", lambda *a: (right(*a)[0] * 1.01, *right(*a)[1:]))
    with pytest.raises(RuntimeError, match="Jacobian mismatch"):
        torch.autograd.gradcheck(lambda x: layer_norm(x, eps=1e-3), [draw(4, 7).requires_grad_()])


@pytest.mark.parametrize("dtype", [F16, BF16, F32], ids=str)
@pytest.mark.parametrize("eps", [1e-6, 1e-5, 1e-12])
def test_eps_is_exact_in_every_dtype(dtype, eps):
    x = draw(6, 64, std=1e-3, dtype=dtype)
    exact = layer_norm(x.double(), eps=eps)
    assert tolerance.error(layer_norm(x, eps=eps), exact) < tolerance.once_rounded(exact, dtype)
    assert tolerance.error(layer_norm(x.double(), eps=2 * eps + 1e-9), exact) > 1e-4


@pytest.mark.parametrize("dtype", [F16, BF16, F32], ids=str)
@pytest.mark.parametrize("weights", [F16, BF16, F32], ids=str)
@pytest.mark.parametrize("out", [F16, BF16, F32], ids=str)
def test_every_mix_of_dtypes_is_rounded_once(dtype, weights, out):
    x = draw(5, 48, dtype=dtype).requires_grad_()
    weight, bias = (draw(48, dtype=weights, seed=s).requires_grad_() for s in (1, 2))
    y = layer_norm(x, weight, bias, out_dtype=out)
    assert y.dtype == out
    exact = layer_norm(x.detach().double(), weight.detach().double(), bias.detach().double())
    assert tolerance.error(y.detach(), exact) < tolerance.once_rounded(exact, out)
    gradients = torch.autograd.grad(y, (x, weight, bias), torch.ones_like(y))
    assert [g.dtype for g in gradients] == [dtype, weights, weights]


def test_large_means_do_not_cancel():
    x = draw(8, 256, mean=1000.0, dtype=F32)
    assert tolerance.error(layer_norm(x), layer_norm(x.double())) < 1e-4
    naive = (x.square().mean(-1, keepdim=True) - x.mean(-1, keepdim=True) ** 2 + 1e-6).rsqrt()
    naive = (x - x.mean(-1, keepdim=True)) * naive
    assert tolerance.error(naive, layer_norm(x.double())) > 1e-3


def test_the_module_has_torchs_keys_and_loads_its_state():
    torch_norm, norm = torch.nn.LayerNorm(24, eps=1e-6), LayerNorm(24)
    with torch.no_grad():
        torch_norm.weight.copy_(draw(24, dtype=F32))
        torch_norm.bias.copy_(draw(24, dtype=F32, seed=1))
    norm.load_state_dict(torch_norm.state_dict(), strict=True)
    x = draw(4, 24, dtype=F32, seed=2)
    assert torch.allclose(norm(x), torch_norm(x), atol=1e-6)
    assert list(LayerNorm(24, bias=False).state_dict()) == ["weight"]
    assert not LayerNorm(24, affine=False).state_dict()


@pytest.mark.parametrize(
    ("emit", "dtype", "plain", "autocast"),
    [
        ("input", F16, F16, F16),
        ("float32", F16, F32, F32),
        ("autocast", F32, F32, BF16),
        ("float32", F64, F64, F64),
    ],
)
def test_the_module_emits_the_dtype_it_was_told(emit, dtype, plain, autocast):
    norm, x = LayerNorm(24, emit=emit), draw(3, 24, dtype=dtype)
    assert norm(x).dtype == plain
    with torch.autocast("cpu", BF16):
        assert norm(x).dtype == autocast


def test_what_does_not_fit_is_refused():
    with pytest.raises(UsageError, match=r"weight \[5\] does not fit"):
        layer_norm(draw(3, 4), draw(5))
    with pytest.raises(UsageError, match="expected 'input', 'float32' or 'autocast'"):
        LayerNorm(4, emit="half")
    with pytest.raises(Refused, match="width 9000 is above 8192"):
        layer_norm(draw(2, 9000, dtype=F32), backend="triton")


def test_plan_says_why():
    assert "float64" in plan(draw(2, 4), None, None).why
    assert plan(draw(2, 4), None, None).path == "torch"


def test_empty_and_one_dimensional_inputs():
    assert layer_norm(draw(0, 4)).shape == (0, 4)
    assert layer_norm(draw(4)).shape == (4,)
