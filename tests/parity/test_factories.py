"""The user's own factories: weights they come with are not passed over in silence, and arguments are checked."""

from __future__ import annotations

from pathlib import Path

import pytest

from vitconv.errors import UsageError
from vitconv.parity.verify import verify

NETWORKS = """
import torch
from timm.models.vision_transformer import VisionTransformer


def base(depth=2):
    torch.manual_seed(0)
    return VisionTransformer(img_size=16, patch_size=4, embed_dim=32, depth=depth, num_heads=4, num_classes=5)


def swapped():
    network = base()
    for block in network.blocks:
        q, k, v = block.attn.qkv.weight.data.chunk(3)
        block.attn.qkv.weight.data = torch.cat([q, v, k])
    return network
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "networks.py").write_text(NETWORKS)
    return tmp_path / "networks.py"


def weights_row(result):
    return next(r for r in result.stage("accounting").rows if r.name == "weights")


def test_weights_that_factories_came_with_and_that_differ_are_said(file: Path) -> None:
    result = verify(f"python:{file}:base", f"python:{file}:swapped", precisions=(), inputs=("coloured",))
    assert result.verdict == "same"
    assert "with probe weights in both: the weights that the networks came with differ" in result.reason
    row = weights_row(result)
    assert row.status == "warn"
    assert "4 of 41 tensors (blocks.{0..1}.attn.k.weight, blocks.{0..1}.attn.v.weight)" in row.detail


def test_the_same_weights_are_said_too(file: Path) -> None:
    result = verify(f"python:{file}:base", f"python:{file}:base", precisions=(), inputs=("coloured",))
    assert "came with differ" not in result.reason
    assert "came with the same ones" in weights_row(result).detail


def test_an_argument_that_the_factory_does_not_take(file: Path) -> None:
    with pytest.raises(UsageError, match=r"unexpected keyword argument 'image'; it takes depth"):
        verify(f"python:{file}:base", f"python:{file}:base", set_a={"image": 24}, precisions=())


def test_a_size_that_the_factory_does_not_take_is_no_argument(file: Path) -> None:
    with pytest.raises(UsageError, match=r"image_size: told \(24, 24\), the network has \(16, 16\)"):
        verify(f"python:{file}:base", f"python:{file}:base", set_a={"image_size": 24}, precisions=())
