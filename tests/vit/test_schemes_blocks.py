"""Blocks that an init scheme asks for, ReZero's, T-Fixup's and sub-LN's, against the papers' formulas in float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import pytest
import torch
from torch import Tensor, nn

from vitconv.checks.base.context import Context
from vitconv.checks.base.target import Wanted, context_of
from vitconv.errors import Refused, UsageError
from vitconv.inits.base.change import changed, changes_of
from vitconv.layout.semantics import Semantics
from vitconv.vit.config import config_from_shapes

SIZE = ("depth=3", "dim=24", "heads=3", "image=12", "patch=4", "classes=5", "channels=2")
BLOCKS = {
    "rezero": ("norm=none", "layer_scale=true"),
    "t-fixup": ("norm=none", "final_norm=false"),
    "sub-ln": ("sub_norm=true",),
}
Weights = Mapping[str, Tensor]


def built(scheme: str, *more: str) -> Context:
    return context_of("vit_tiny", Wanted((*SIZE, *BLOCKS[scheme], *more), scheme=scheme))


def linear(w: Weights, name: str, x: Tensor) -> Tensor:
    return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]


def layer_norm(w: Weights, name: str, x: Tensor) -> Tensor:
    """Ba et al., 2016, with timm's eps."""
    x = x - x.mean(-1, keepdim=True)
    x = x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt()
    return x * w[f"{name}.weight"] + w[f"{name}.bias"]


def heads_of(w: Weights, at: str, x: Tensor) -> Tensor:
    """Vaswani et al., 2017, equation 1, head by head, ahead of the output projection."""
    q, k, v = (linear(w, f"{at}.attn.{part}", x) for part in "qkv")
    out = []
    for h in range(3):
        own = slice(8 * h, 8 * h + 8)
        weights = torch.softmax(torch.einsum("bse,bte->bst", q[..., own], k[..., own]) / math.sqrt(8), -1)
        out.append(weights @ v[..., own])
    return torch.cat(out, -1)


def gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))


def rezero(w: Weights, at: str, x: Tensor) -> Tensor:
    """x + alpha F(x), Bachlechner et al., 2020, equation 3; here one alpha per channel."""
    x = x + w[f"{at}.ls1"] * linear(w, f"{at}.attn.out", heads_of(w, at, x))
    return x + w[f"{at}.ls2"] * linear(w, f"{at}.mlp.down", gelu(linear(w, f"{at}.mlp.up", x)))


def t_fixup(w: Weights, at: str, x: Tensor) -> Tensor:
    """x + F(x) without layer normalisation, Huang et al., 2020, section 3."""
    x = x + linear(w, f"{at}.attn.out", heads_of(w, at, x))
    return x + linear(w, f"{at}.mlp.down", gelu(linear(w, f"{at}.mlp.up", x)))


def sub_ln(w: Weights, at: str, x: Tensor) -> Tensor:
    """x + W_O LN(A(LN x)) and x + W_2 LN(phi(W_1 LN x)), Wang et al., Magneto, 2022, section 3 and figure 2."""
    inside = heads_of(w, at, layer_norm(w, f"{at}.norm1", x))
    x = x + linear(w, f"{at}.attn.out", layer_norm(w, f"{at}.attn.norm", inside))
    inside = gelu(linear(w, f"{at}.mlp.up", layer_norm(w, f"{at}.norm2", x)))
    return x + linear(w, f"{at}.mlp.down", layer_norm(w, f"{at}.mlp.norm", inside))


FORMULAS: dict[str, Callable[[Weights, str, Tensor], Tensor]] = {
    "rezero": rezero, "t-fixup": t_fixup, "sub-ln": sub_ln
}  # fmt: skip


def by_formula(w: Weights, images: Tensor, block: Callable[[Weights, str, Tensor], Tensor]) -> Tensor:
    """The whole network: patches row by row, class token first, its last state to the head."""
    tiles = [images[:, :, 4 * r : 4 * r + 4, 4 * c : 4 * c + 4].flatten(1) for r in range(3) for c in range(3)]
    x = torch.stack(tiles, 1) @ w["embed.patch.weight"].flatten(1).T + w["embed.patch.bias"] + w["embed.pos"]
    x = torch.cat([(w["embed.cls"] + w["embed.pos_cls"]).expand(len(x), 1, -1), x], 1)
    for i in range(3):
        x = block(w, f"blocks.{i}", x)
    return linear(w, "head", (layer_norm(w, "norm", x) if "norm.weight" in w else x)[:, 0])


@pytest.mark.parametrize("scheme", BLOCKS)
def test_the_network_is_the_papers_forward_and_backward(
    scheme: str, randomise: Callable[[nn.Module], nn.Module]
) -> None:
    module = randomise(built(scheme).network.module.double())
    images = torch.randn(2, 2, 12, 12, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    toward = torch.randn(2, 5, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    weights = {name: p.detach().clone().requires_grad_() for name, p in module.named_parameters()}
    expected = by_formula(weights, images, FORMULAS[scheme])
    found = module(images)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-11 * float(expected.detach().abs().max()))
    (expected * toward).sum().backward()
    (found * toward).sum().backward()
    wanted = {name: w.grad for name, w in weights.items() if w.grad is not None}
    assert set(wanted) == set(weights)
    # Of key biases, whose gradient is 0, there is rounding alone: it is held against that of the query biases.
    for name, p in module.named_parameters():
        size = wanted[name.replace(".k.bias", ".q.bias")].abs().max()
        assert p.grad is not None, name
        torch.testing.assert_close(p.grad, wanted[name], rtol=0, atol=1e-10 * float(size), msg=name)
    # The formulas are not each other's: a block computed by another one is told apart.
    if scheme == "rezero":
        assert not torch.allclose(by_formula(weights, images, t_fixup), expected)


def test_rezero_starts_as_the_identity() -> None:
    module = built("rezero").network.module
    x = torch.randn(2, 10, 24, generator=torch.Generator().manual_seed(0))
    assert all(torch.equal(block(x), x) for block in module.blocks)  # type: ignore[union-attr]
    assert not any(torch.equal(block(x), x) for block in built("t-fixup").network.module.blocks)  # type: ignore[union-attr]


@pytest.mark.parametrize("scheme", BLOCKS)
def test_a_twin_of_another_size_is_of_the_same_kind(scheme: str) -> None:
    arch = built(scheme).arch
    plain = context_of("vit_tiny", Wanted(SIZE)).arch
    twin = changed(plain, changes_of(arch))[0]
    lacking = {"norm.weight", "norm.bias"} if scheme == "t-fixup" else set()
    assert set(twin.shapes) == set(arch.shapes) | lacking
    assert twin.placement == arch.placement


def test_what_tensors_and_facts_say_of_norms_must_agree() -> None:
    arch = built("t-fixup").arch
    with pytest.raises(Refused, match="norm_placement=pre, but there is no norm in the blocks"):
        config_from_shapes(arch.shapes, arch.facts.replaced({"norm_placement": "pre"}))
    plain = context_of("vit_tiny", Wanted(SIZE)).arch
    with pytest.raises(Refused, match="norm_placement=none, but there are norms in the blocks"):
        config_from_shapes(plain.shapes, plain.facts.replaced({"norm_placement": "none"}))
    with pytest.raises(UsageError, match="have no norms that could stand there"):
        changed(arch, {"norm": "pre"})


def test_without_norms_no_eps_and_no_kind_of_norm_is_asked_for() -> None:
    arch = built("t-fixup").arch
    facts = Semantics(heads=3, activation="gelu", attention="softmax", pooling="token")
    assert config_from_shapes(arch.shapes, facts).facts.norm_placement == "none"
