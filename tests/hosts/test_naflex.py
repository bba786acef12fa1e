"""A live NaFlexVit beside the classic network of the same weights: verify finds its tensors, patches kept as rows."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from vitconv.conversion.translate import translate
from vitconv.hosts.base.host import Spec
from vitconv.parity.bridge import bridge_of
from vitconv.registry import HOSTS, load


@pytest.mark.parametrize("pos", ["learned", "factorized"])
def test_its_tensors_are_canonical_ones_with_the_sides_that_its_facts_tell(pos: str) -> None:
    pytest.importorskip("timm")
    from timm.models.naflexvit import NaFlexVit, NaFlexVitCfg

    sizes: dict[str, Any] = {"patch_size": (4, 2), "embed_dim": 16, "depth": 1, "num_heads": 2}
    net = NaFlexVit(NaFlexVitCfg(**sizes, pos_embed=pos, pos_embed_grid_size=(3, 5), global_pool="avg"), num_classes=5)
    built = load(HOSTS, "timm").describe(net, Spec("", {}))
    assert built.inputs.shape == (3, 12, 10)
    state = dict(net.state_dict())
    bridge = bridge_of(state, built.dialects, built.facts)
    assert bridge.shapes["embed.patch.weight"] == (16, 3, 4, 2)
    there = translate(state, "timm-naflex", "canonical", axes={"p": 4, "q": 2})
    assert all(torch.equal(v, there[k]) for k, v in bridge.read(state).items())
