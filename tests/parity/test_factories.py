"""The user's own factories: weights they come with are not passed over in silence, and arguments are checked."""

from __future__ import annotations

from pathlib import Path

import pytest

from vitconv.errors import NotRecognised, Refused, UsageError
from vitconv.parity.verify import verify

NETWORKS = """
import torch
from timm.models.vision_transformer import VisionTransformer


def base(depth=2):
    torch.manual_seed(0)
    return VisionTransformer(img_size=16, patch_size=4, embed_dim=32, depth=depth, num_heads=4, num_classes=5)


class Own(torch.nn.Module):
    # The library's parameters, and none of its other attributes.
    def __init__(self, qkv, proj, scale):
        super().__init__()
        self.qkv, self.proj, self.factor = qkv, proj, scale

    def forward(self, x, attn_mask=None, is_causal=False):
        q, k, v = self.qkv(x).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4)
        weights = (q @ k.transpose(-2, -1) * self.factor).softmax(-1)
        return self.proj((weights @ v).transpose(1, 2).flatten(2))


def own_attention(factor=8**-0.5):
    network = base()
    for block in network.blocks:
        block.attn = Own(block.attn.qkv, block.attn.proj, factor)
    return network


def own_attention_unscaled():
    return own_attention(32**-0.5)


class OwnBlock(torch.nn.Module):
    def __init__(self, block):
        super().__init__()
        self.norm1, self.mixer, self.norm2, self.mlp = block.norm1, block.attn, block.norm2, block.mlp

    def forward(self, x, attn_mask=None, is_causal=False):
        x = x + self.mixer(self.norm1(x))
        return x + self.mlp(self.norm2(x))


def own_blocks():
    network = base()
    network.blocks = torch.nn.Sequential(*(OwnBlock(block) for block in network.blocks))
    return network


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


def test_an_attention_of_the_users_own_in_a_librarys_network(file: Path) -> None:
    result = verify(f"python:{file}:base", f"python:{file}:own_attention", precisions=(), inputs=("coloured",))
    assert result.verdict == "same"
    other = verify(f"python:{file}:base", f"python:{file}:own_attention_unscaled", precisions=(), inputs=("coloured",))
    assert other.verdict == "differs"
    assert other.cause.found == ("scale-width",)


def test_blocks_of_the_users_own_in_a_librarys_network_are_refused_by_what_they_hold(file: Path) -> None:
    with pytest.raises((NotRecognised, Refused), match="mixer"):
        verify(f"python:{file}:base", f"python:{file}:own_blocks", precisions=())


@pytest.mark.parametrize("how", ["raise KeyError('theirs')", "import sys; sys.exit(3)"], ids=["error", "exit"])
def test_a_side_that_ends_with_any_error_is_told(how: str, file: Path) -> None:
    text = f"""

class Ends(VisionTransformer):
    def forward(self, x):
        {how}


def ends():
    return Ends(img_size=16, patch_size=4, embed_dim=32, depth=2, num_heads=4, num_classes=5)
"""
    file.write_text(file.read_text() + text)
    with pytest.raises(Refused, match=r"B .* does not run: (KeyError|SystemExit): .*networks.py, line"):
        verify(f"python:{file}:base", f"python:{file}:ends", precisions=())


def test_a_side_that_changes_its_images_in_place_runs_and_does_not_spoil_the_other(file: Path) -> None:
    text = """

class Normalises(VisionTransformer):
    def forward(self, x):
        return super().forward(x.mul_(2.0).div_(2.0))


class Own(torch.nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.net, self.factor = base(), factor

    def forward(self, x):
        x *= self.factor
        return self.net(x)


def normalises():
    torch.manual_seed(0)
    return Normalises(img_size=16, patch_size=4, embed_dim=32, depth=2, num_heads=4, num_classes=5)


def scales_to_and_fro():
    return Own(1.0)


def doubles():
    return Own(2.0)
"""
    file.write_text(file.read_text() + text)
    for name, verdict in (("normalises", "same"), ("scales_to_and_fro", "same"), ("doubles", "differs")):
        result = verify(f"python:{file}:base", f"python:{file}:{name}", precisions=("fp32",), skip=("why",))
        assert result.verdict == verdict, name
        assert [row.name for row in result.stage("sanity").rows if row.status == "fail"] == [], name


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("with torch.no_grad():\n            return self.net(x)", "its output has no gradient: its forward is under"),
        ("return self.net(x).detach()", "its output has no gradient: its forward is under"),
        ("return x.mean((2, 3))", "Own has no parameters; expected a network with weights"),
    ],
    ids=["no-grad", "detached", "no-parameters"],
)
def test_a_side_without_gradients_or_parameters_is_told_so(body: str, says: str, file: Path) -> None:
    text = f"""

class Own(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = base() if "net" in {body!r} else None

    def forward(self, x):
        {body}
"""
    file.write_text(file.read_text() + text)
    with pytest.raises(Refused, match=rf"^B .*{says}"):
        verify(f"python:{file}:base", f"python:{file}:Own", precisions=())
