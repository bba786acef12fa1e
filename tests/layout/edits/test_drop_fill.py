"""drop and fill: what is lost or made up is said, and whether the function feels it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from vitconv.errors import Refused, UsageError


@pytest.mark.parametrize(
    ("pattern", "gone"),
    [
        ("head*", ["head.weight", "head.bias"]),
        ("blocks.{i}.attn.k.bias", ["blocks.0.attn.k.bias", "blocks.1.attn.k.bias"]),
        ("blocks.*.norm?.bias", [f"blocks.{i}.norm{j}.bias" for i in (0, 1) for j in (1, 2)]),
        ("blocks.1.mlp.up.weight", ["blocks.1.mlp.up.weight"]),
        ("blocks.{0..1}.attn.{q,v}.bias", [f"blocks.{i}.attn.{x}.bias" for i in (0, 1) for x in "qv"]),
        ("blocks.{0,1..1}.norm1.bias", ["blocks.0.norm1.bias", "blocks.1.norm1.bias"]),
    ],
)
def test_drop(random_network: Callable[..., Any], pattern: str, gone: list[str]) -> None:
    net = random_network()
    out = net.edited(f"drop:{pattern}")
    assert set(net.network.cells) - set(out.network.cells) == set(gone)
    assert sorted(out.network.log[-1].removed) == sorted(gone)
    assert out.edited("cast:F32").network.cells == out.network.cells


def test_a_pattern_that_matches_nothing(random_network: Callable[..., Any]) -> None:
    with pytest.raises(UsageError, match=r"drop:ls\* matches no tensor.*blocks\.\{0\.\.1\}\.attn\.k\.bias"):
        random_network().edited("drop:ls*")


def test_sizes_of_axes_that_are_gone(random_network: Callable[..., Any]) -> None:
    net = random_network(("head", "head_dist", "embed.reg", "embed.pos_reg"))
    assert net.edited("drop:head.*").network.sizes["o"] == 5
    assert "o" not in net.edited("drop:head*").network.sizes
    assert net.edited("drop:embed.reg").network.sizes["r"] == 4
    out = net.edited("drop:*reg")
    assert "r" not in out.network.sizes
    assert out.network.sizes["d"] == 6


def images() -> torch.Tensor:
    return torch.randn(2, 3, 8, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def test_a_key_bias_is_not_felt(model: Callable[..., Any]) -> None:
    # Recipe B14: a large key bias dropped, outputs unchanged.
    before = model()
    with torch.no_grad():
        for block in before.vit.blocks:
            block.attn.k.bias.mul_(5)
    data = {
        **before.held.data,
        **{
            f"file.blocks.{i}.attn.k.bias": before.vit.blocks[i].attn.k.bias.numpy(force=True).tobytes() for i in (0, 1)
        },
    }
    out = type(before.held)(before.held.network, data).edited("drop:blocks.{i}.attn.k.bias")
    a, b = before.vit(images()), before.function(out, k_bias=False)(images())
    assert (a - b).abs().max() < 1e-12 * a.abs().max()
    assert out.network.log[-1].exact
    assert "outputs unchanged: a key bias adds the same number to all scores of a query" in out.last


@pytest.mark.parametrize(
    ("facts", "extra"),
    [({"attention": "linear"}, ()), ({"position": "rope"}, ()), ({}, ("attn.q_norm", "attn.k_norm"))],
    ids=["linear attention", "rotary positions", "key norm"],
)
def test_a_key_bias_that_is_felt(random_network: Callable[..., Any], facts: dict[str, str], extra: tuple) -> None:
    net = random_network(block=("attn.q", "attn.k", "attn.v", *extra)).told(**facts)
    out = net.edited("drop:blocks.{i}.attn.k.bias")
    assert not out.network.log[-1].exact
    assert "unchanged" not in out.last


def test_a_query_bias_is_felt(model: Callable[..., Any]) -> None:
    before = model()
    out = before.held.edited("drop:blocks.{i}.attn.q.bias")
    assert not out.network.log[-1].exact
    a, b = before.vit(images()), before.function(out, q_bias=False)(images())
    assert (a - b).abs().max() > 1e-4 * a.abs().max()


def test_dropped_tensors_get_no_gradient(random_network: Callable[..., Any]) -> None:
    net = random_network()
    out = net.edited("drop:head*")
    back = out.pull_back({n: np.ones(c.shape) for n, c in out.network.cells.items()})
    assert set(back) == set(out.network.cells)


@pytest.mark.parametrize(
    ("edit", "exact"),
    [
        ("fill:blocks.{i}.ls1=1", True),
        ("fill:blocks.{i}.ls1=0.5", False),
        ("fill:embed.pos_dist=zeros", True),
        ("fill:embed.dist=0", False),
        ("fill:embed.mask=0", True),
        ("fill:trunk_norm.weight=ones", False),
    ],
)
def test_fill_says_whether_it_is_felt(random_network: Callable[..., Any], edit: str, exact: bool) -> None:
    out = random_network().edited(edit)
    assert out.network.log[-1].exact is exact
    assert ("outputs unchanged" in out.last) is exact


def test_fill_bias_of_every_layer(model: Callable[..., Any]) -> None:
    before = model(q_bias=False, k_bias=False, v_bias=False)
    out = before.held.edited("fill:blocks.{i}.attn.{q,k,v}.bias=0")
    assert out.network.log[0].added == ("blocks.0.attn.q.bias", "blocks.1.attn.q.bias")
    after = before.function(out, q_bias=True, k_bias=True, v_bias=True)
    assert torch.equal(before.vit(images()), after(images()))


def test_fill_only_where_it_lacks(random_network: Callable[..., Any]) -> None:
    net = random_network().edited("drop:blocks.1.attn.q.bias")
    out = net.edited("fill:blocks.{i}.attn.q.bias=2")
    assert out.network.log[-1].added == ("blocks.1.attn.q.bias",)
    assert "1 others are there and stay" in out.last
    assert (out["blocks.1.attn.q.bias"] == 2).all()
    assert np.array_equal(out["blocks.0.attn.q.bias"], net["blocks.0.attn.q.bias"])


def test_fill_does_not_overwrite(random_network: Callable[..., Any]) -> None:
    with pytest.raises(Refused, match=r"has it already; .* say --edit drop:norm.bias first"):
        random_network().edited("fill:norm.bias=0")
    out = random_network().edited("drop:norm.bias", "fill:norm.bias=0.25")
    assert (out["norm.bias"] == 0.25).all()


@pytest.mark.parametrize(
    ("edit", "error", "match"),
    [
        ("fill:blocks.{i}.attn.kbias=0", UsageError, "no canonical tensor has this name"),
        ("fill:blocks.7.ls1=1", UsageError, "2 layers, counted from 0"),
        ("fill:norm.bias=nan", UsageError, "a number, zeros or ones"),
        ("fill", UsageError, "needs NAME=VALUE"),
        ("fill:embed.reg=0", Refused, "its size along r is not known; say r=N"),
        ("fill:blocks.{i}.attn.q_norm.weight=1", Refused, "its size along e is not known; say --set heads=N"),
        ("fill:head_dist.weight=0,o=7", UsageError, "o=7, but this network has o=5"),
    ],
)
def test_what_cannot_be_filled(
    random_network: Callable[..., Any], edit: str, error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        random_network().edited(edit)


def test_shapes_and_dtypes_of_what_is_filled(random_network: Callable[..., Any], held: Callable[..., Any]) -> None:
    net = random_network().told(heads=2)
    assert net.edited("fill:embed.reg=0,r=3")["embed.reg"].shape == (3, 6)
    assert net.edited("fill:blocks.{i}.attn.q_norm.weight=1")["blocks.1.attn.q_norm.weight"].shape == (3,)
    assert net.edited("fill:pool.dense.weight=0")["pool.dense.weight"].shape == (6, 6)
    kinds = {n: "BF16" for n in net.network.cells if ".attn.k." in n}
    mixed = held(net.edited("drop:*.k.bias").values, dtypes=kinds)
    out = mixed.edited("fill:blocks.{i}.attn.k.bias=0", "fill:embed.dist=0", "fill:embed.mask=0,dtype=F16")
    dtypes = [out.network.cells[n].dtype for n in ("blocks.0.attn.k.bias", "embed.dist", "embed.mask")]
    assert dtypes == ["BF16", "F32", "F16"]


def test_edits_leave_the_network_they_were_given(random_network: Callable[..., Any]) -> None:
    net = random_network()
    before = dataclasses.asdict(net.network)
    net.edited("drop:head*", "fill:embed.dist=0", "cast:BF16", "fold-cls-position")
    assert dataclasses.asdict(net.network) == before
