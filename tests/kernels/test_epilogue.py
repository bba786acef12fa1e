"""Hold the MLP epilogue: GELU against torch, gradcheck, the Philox mask's known answers, and the module."""

import pytest
import torch
import torch.nn.functional as F

from vitconv.errors import UsageError
from vitconv.kernels.epilogue.module import MlpEpilogue, epilogue, plan
from vitconv.kernels.epilogue.philox import keep_mask, philox, threshold


def draw(*shape, seed=0, std=1.0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * std


# Philox4x32-10 known answers: counter, key, result (Random123's kat_vectors).
KNOWN = [
    ((0, 0, 0, 0), 0, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, 2**64 - 1, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        0x299F31D0_A4093822,
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN, ids=["zeros", "ones", "pi"])
def test_philox_known_answers(counter, key, expected):
    words = philox(key, tuple(torch.tensor([c]) for c in counter))
    assert tuple(int(w) for w in words) == expected


@pytest.mark.parametrize("columns", [1, 3, 4, 100, 256])
@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_the_mask_has_its_rate_and_repeats(columns, p):
    rows = 40_000 // columns
    mask = keep_mask(rows, columns, p, seed=7)
    assert mask.shape == (rows, columns)
    assert abs(float(mask.double().mean()) - (1 - p)) < 0.01
    assert torch.equal(mask, keep_mask(rows, columns, p, seed=7))
    assert not torch.equal(mask, keep_mask(rows, columns, p, seed=8))


def test_no_two_rows_share_a_mask():
    mask = keep_mask(256, 64, 0.5, seed=3)
    assert len({tuple(row.tolist()) for row in mask}) == 256


def test_threshold_ends():
    assert threshold(0.0) == 0
    assert threshold(1.0) == 2**32
    assert keep_mask(3, 5, 0.0, 1).all()
    assert not keep_mask(3, 5, 1.0, 1).any()


@pytest.mark.parametrize(("activation", "approximate"), [("erf", "none"), ("tanh", "tanh")])
def test_equals_torch_without_dropout(activation, approximate):
    x, bias = draw(6, 30, std=3).requires_grad_(), draw(30, seed=1).requires_grad_()
    got = epilogue(x, bias, activation=activation)
    expected = F.gelu(x + bias, approximate=approximate)
    assert (got - expected).abs().max() < 1e-14
    grad = draw(6, 30, seed=2)
    for g, e in zip(*(torch.autograd.grad(y, (x, bias), grad) for y in (got, expected)), strict=True):
        assert (g - e).abs().max() < 1e-13


@pytest.mark.parametrize("activation", ["erf", "tanh"])
@pytest.mark.parametrize("p", [0.0, 0.4, 1.0])
def test_gradcheck(activation, p):
    x, bias = draw(3, 9).requires_grad_(), draw(9, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(lambda x, b: epilogue(x, b, activation=activation, p=p, seed=5), (x, bias))


def test_dropout_keeps_the_mean_and_zeros_exactly_the_mask():
    x = draw(500, 40)
    kept, y = keep_mask(500, 40, 0.3, seed=11), epilogue(x, p=0.3, seed=11)
    assert torch.equal(y == 0, ~kept)
    assert torch.allclose(y[kept], (F.gelu(x) / 0.7)[kept], rtol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("activation", ["erf", "tanh"])
def test_extreme_inputs_stay_finite(dtype, activation):
    x = torch.tensor([-6e4, -30.0, -1e-6, 0.0, 1e-6, 30.0, 6e4]).to(dtype).requires_grad_()
    y = epilogue(x, activation=activation)
    y.sum().backward()
    assert torch.isfinite(y).all()
    assert torch.isfinite(x.grad).all()


def test_the_modules_bias_is_saved_initialised_and_trained():
    module = MlpEpilogue(16, p=0.5)
    assert list(module.state_dict()) == ["bias"]
    assert torch.equal(module.bias, torch.zeros(16))
    module(torch.ones(4, 16)).sum().backward()
    assert module.bias.grad.abs().max() > 0
    assert not MlpEpilogue(16, bias=False).state_dict()


def test_the_module_draws_by_torchs_seed_and_only_in_training():
    module, x = MlpEpilogue(64, p=0.5), torch.ones(8, 64)
    torch.manual_seed(1)
    first, second = module(x), module(x)
    torch.manual_seed(1)
    assert torch.equal(module(x), first)
    assert not torch.equal(first, second)
    assert torch.equal(module.eval()(x), F.gelu(x))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"activation": "relu"}, "'relu': expected one of erf, tanh"),
        ({"p": 1.5}, "p 1.5: expected 0 to 1"),
        ({"seed": -1}, "seed -1"),
        ({"bias": torch.zeros(3)}, r"bias \[3\] and x \[2, 4\]"),
    ],
    ids=["activation", "p", "seed", "bias"],
)
def test_what_does_not_fit_is_refused(change, message):
    with pytest.raises(UsageError, match=message):
        epilogue(torch.zeros(2, 4), **change)


def test_plan_says_why():
    assert "drops everything" in plan(torch.zeros(2, 4), None, p=1.0).why
    assert "CPU" in plan(torch.zeros(2, 4), None).why
