"""Edits between the sides: weights are carried through them, and gradients pulled back."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from vitconv.errors import Refused
from vitconv.parity.verify import verify

QUICK: dict[str, Any] = {"precisions": ["fp64"], "skip": ["why"], "inputs": ["coloured"]}


@pytest.fixture
def scaled(weights):
    g = torch.Generator().manual_seed(1)
    scales = {f"blocks.{i}.ls{j}": 0.5 + torch.rand(32, generator=g).double() for i in range(2) for j in (1, 2)}
    return {**weights, **{n: t.float().double() for n, t in scales.items()}}


def test_a_folded_layer_scale_is_the_same_function_with_gradients_pulled_back(write, scaled, network):
    spec, options = network("timm")
    path = write("a", scaled)
    with pytest.raises(Refused, match=r"has no place for: blocks\.\{0..1\}\.ls"):
        verify(path, spec, set_b=options, **QUICK)
    result = verify(path, spec, set_b=options, edits_b=["fold-layer-scale"], **QUICK)
    assert result.verdict == "same", result.reason
    # Gradients of the scale itself, which B has no parameter for, are compared too.
    compared = {g.name for g in result.stage("function").data["gaps"] if g.kind == "grad"}
    assert {"blocks.0.ls1", "blocks.1.ls2", "blocks.0.attn.out.weight"} <= compared
    assert any("fold-layer-scale" in note for note in result.stage("accounting").notes)


def test_gradients_that_are_not_pulled_back_would_differ(write, scaled, network, monkeypatch):
    from vitconv.parity.edits import Edited

    spec, options = network("timm")
    monkeypatch.setattr(Edited, "gradients", lambda self, before, after: dict(after))
    result = verify(write("a", scaled), spec, set_b=options, edits_b=["fold-layer-scale"], **QUICK)
    assert result.verdict != "same"
    worst = {g.name: g.rel_rms for g in result.stage("function").data["gaps"] if g.kind == "grad"}
    assert worst["blocks.0.attn.out.weight"] > 0.1


def test_a_dropped_tensor_is_dropped_by_name_alone(write, weights, network):
    spec, options = network("timm")
    path = write("m", {**weights, "embed.mask": torch.ones(32)})
    result = verify(path, spec, set_b=options, edits_b=["drop:embed.mask"], **QUICK)
    assert any("embed.mask" in note for note in result.stage("accounting").notes)
    assert result.stage("function").rows[0].values["smallest_threshold"] < 1e-12


def off(result: Any) -> set[str]:
    return {g.name for g in result.stage("function").data["gaps"] if not g.rel_rms <= 1e-10}


def test_branches_with_a_scale_folded_in_are_compared_all_the_same(write, scaled, network):
    spec, options = network("timm")
    result = verify(write("a", scaled), spec, set_b=options, edits_b=["fold-layer-scale"], **QUICK)
    compared = {(g.kind, g.name) for g in result.stage("function").data["gaps"]}
    assert {(k, f"blocks.1.{part}") for k in ("tap", "tap-grad") for part in ("attn", "mlp")} <= compared
    assert any("B has a factor folded in" in note for note in result.stage("function").notes)


@pytest.mark.parametrize("side", ["a", "b"])
def test_a_fault_beside_a_folded_scale_is_seen_on_either_side(side, write, scaled, live, weights):
    from vitconv.vit.activation import gelu_tanh

    def change(module: Any) -> None:
        module.blocks[1].mlp.act = gelu_tanh

    path, plain = write("a", scaled), live(change, weights)
    ends = {"a": (plain, path), "b": (path, plain)}[side]
    result = verify(*ends, **{f"edits_{side}": ["fold-layer-scale"]}, **QUICK)
    assert result.verdict == "differs"
    assert result.where.forward == "blocks.1.mlp"


DEEP = {"norm_placement": "deepnorm", "residual_alpha": 1.7, "norm_eps": 1e-3}


@pytest.mark.parametrize("eps", [1e-3 / 1.7**2, 1e-3], ids=["the folded eps", "the eps left as it was"])
def test_a_folded_deepnorm_is_compared_in_every_tap(eps, write, live, weights):
    post = live(given=weights, norm_placement="post", norm_eps=eps)
    result = verify(write("a", weights, **DEEP), post, edits_b=["fold-deepnorm"], **QUICK)
    compared = {g.name for g in result.stage("function").data["gaps"] if g.kind == "tap"}
    assert {"embed", "blocks.0", "blocks.0.attn", "blocks.1.mlp", "norm"} <= compared
    probe = result.stage("function").rows[0]
    assert probe.status == ("ok" if eps < 1e-3 else "fail"), probe.detail


def test_a_bias_that_one_layout_cannot_hold_comes_with_the_edit_that_compares_without(write, weights):
    without = {n: w for n, w in weights.items() if n != "head.bias"}
    a, b = write("a", without), write("b", {**weights, "head.bias": torch.zeros_like(weights["head.bias"])})
    result = verify(a, b, **QUICK)
    assert result.verdict != "same"
    (row,) = (r for r in result.stage("accounting").rows if r.name == "only in B")
    assert row.detail.endswith("--edit-b fill:head.bias=0")
    assert verify(a, b, edits_b=["fill:head.bias=0"], **QUICK).verdict == "same"
    # A norm is no bias: there is nothing to fill in.
    result = verify(write("c", {n: w for n, w in without.items() if not n.startswith("norm.")}), b, **QUICK)
    assert all("--edit" not in r.detail for r in result.stage("accounting").rows)
