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
