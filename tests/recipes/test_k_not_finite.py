"""Public reports of NaN that is no matter of half precision, and of networks that cannot be trained at all (K)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from vitconv.checks.base.plan import Plan
from vitconv.checks.base.run import all_checks, run_checks, verdict
from vitconv.checks.base.target import Wanted, context_of

Core = Callable[[Tensor, Tensor, Tensor], Tensor]


class Own(nn.Module):
    """A ViT of two blocks in names of its own, with the attention that is given, 4 heads of width 8."""

    def __init__(self, core: Core, end: Callable[[Tensor], Tensor] = lambda y: y, std: float = 0.3) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.stem, self.place = nn.Conv2d(3, 32, 4, 4), nn.Parameter(torch.zeros(1, 16, 32))
        self.norms = nn.ModuleList(nn.LayerNorm(32) for _ in range(4))
        self.qkv = nn.ModuleList(nn.Linear(32, 96) for _ in range(2))
        self.mlp = nn.ModuleList(nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)) for _ in range(2))
        self.head, self.core, self.end = nn.Linear(32, 5), core, end
        with torch.no_grad():
            for name, p in self.named_parameters():
                p.copy_(std * torch.randn(p.shape, generator=generator) + ("norm" in name and name.endswith("weight")))

    def forward(self, images: Tensor) -> Tensor:
        x = self.stem(images).flatten(2).transpose(1, 2) + self.place
        for i in range(2):
            q, k, v = self.qkv[i](self.norms[2 * i](x)).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4).unbind(0)
            x = x + self.core(q, k, v).transpose(1, 2).flatten(2)
            x = x + self.mlp[i](self.norms[2 * i + 1](x))
        return self.end(self.head(x.mean(1)))


def fused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return functional.scaled_dot_product_attention(q, k, v)


def without_the_maximum(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    e = (20 * q @ k.transpose(-2, -1)).exp()
    return e / e.sum(-1, keepdim=True) @ v


def random_features(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Favor: exp(8 x - |8 x|²/2) of every query and key is 0 for nearly all."""
    q, k = ((8 * x - (8 * x).square().sum(-1, keepdim=True) / 2).exp() for x in (q, k))
    return q @ (k.transpose(-2, -1) @ v) / (q @ k.sum(-2).unsqueeze(-1))


def without_an_eps(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k = functional.relu(q - 50), functional.relu(k)
    return q @ (k.transpose(-2, -1) @ v) / (q @ k.sum(-2).unsqueeze(-1))


def normalised_in_half(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The eps of normalize, 1e-12, is 0 in float16, and a query of zeros is 0/0."""
    q = functional.normalize((0 * q).half(), dim=-1).float()
    return functional.scaled_dot_product_attention(q, k, v)


def root_of_half(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    logits = q @ k.transpose(-2, -1)
    return torch.where(logits > 0, logits.sqrt(), torch.zeros_like(logits)).softmax(-1) @ v


def distance(y: Tensor) -> Tensor:
    """Add a root of squares that are all 0: its value is 0, its slope is not a number."""
    return y + (y - y.detach()).square().sum(-1, keepdim=True).sqrt()


def said(net: nn.Module, precision: str = "amp-bf16") -> tuple[int, str]:
    images = torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    context = context_of(net, Wanted(plan=Plan(batch=4, precision=precision)), images=images)
    outcomes = run_checks(context, [c for c in all_checks() if c.cost in ("facts", "pass", "half")])
    return verdict(outcomes)[1], "\n".join(
        f"{f.level} {o.check.id}: {f.text} -> {f.advice} {f.where}" for o in outcomes for f in o.findings
    )


@pytest.mark.parametrize(
    ("core", "operator"),
    [
        pytest.param(without_the_maximum, "exp in the network", id="FasterTransformer#43"),
        pytest.param(random_features, "div in the network", id="xformers#96"),
        pytest.param(without_an_eps, "div in the network", id="efficientvit#15"),
        pytest.param(normalised_in_half, "div in the network", id="diffusers#13316"),
    ],
)
def test_the_operator_that_runs_out_in_float32_is_named(core: Core, operator: str) -> None:
    code, text = said(Own(core))
    assert code == 1
    assert f"error loss-at-init: the logits are not finite in float32: {operator}" in text
    assert "test_k_not_finite.py" in text
    assert "make the head smaller" not in text
    assert "std nan" not in text


@pytest.mark.parametrize(
    ("core", "end", "operator"),
    [
        pytest.param(fused, distance, "div in the network, backward", id="root-of-0"),
        pytest.param(root_of_half, lambda y: y, "sqrt in the network (", id="where-of-a-root"),
    ],
)
def test_gradients_that_are_not_finite_behind_a_finite_output(core: Core, end: Callable, operator: str) -> None:
    code, text = said(Own(core, end))
    assert code == 1
    assert "error signals: the output is finite, and the gradients of" in text
    assert operator in text


def frozen() -> nn.Module:
    net = Own(fused)
    for p in net.parameters():
        p.requires_grad_(False)
    return net


def without_grad() -> nn.Module:
    net = Own(fused)
    net.forward = torch.no_grad()(net.forward)
    return net


def classes_only() -> nn.Module:
    return Own(fused, lambda y: functional.one_hot(y.argmax(-1), 5).to(y))


@pytest.mark.parametrize(
    ("made", "says"),
    [
        pytest.param(frozen, "all 25 are frozen", id="all-frozen"),
        pytest.param(without_grad, "torch.no_grad()", id="no-grad-in-forward"),
        pytest.param(classes_only, "argmax", id="argmax"),
    ],
)
def test_a_network_that_nothing_can_train(made: Callable[[], nn.Module], says: str) -> None:
    code, text = said(made(), "amp-fp16")
    assert code == 1
    assert "no gradient reaches any parameter" in text
    assert says in text


def norms_kept(net: nn.Module) -> nn.Module:
    for norm in net.norms:
        norm.float()
    return net


@pytest.mark.parametrize(
    ("made", "code", "says"),
    [
        pytest.param(lambda n: n.half(), 1, "25 of 25 parameters are float16", id="LAVIS#279"),
        pytest.param(lambda n: norms_kept(n.half()), 1, "LayerNorm float32, Linear float16", id="CLIP#40-norms-kept"),
        pytest.param(lambda n: n.bfloat16(), 0, "25 of 25 parameters are bfloat16", id="all-bfloat16"),
        pytest.param(lambda n: n, 0, "", id="float32"),
    ],
)
def test_parameters_in_half_precision_of_any_names(made: Callable, code: int, says: str) -> None:
    got, text = said(made(Own(fused, std=0.1)), "amp-fp16")
    assert got == code
    assert says in text
    assert ("GradScaler refuses" in text) == (code == 1)
    assert ("keep parameters in float32" in text) == bool(says)


@pytest.mark.parametrize("precision", ["fp32", "amp-fp16", "amp-bf16"])
def test_the_right_network_has_no_error(precision: str) -> None:
    code, text = said(Own(fused, std=0.1), precision)
    assert code == 0, text
    assert "error" not in text and "warn" not in text, text
