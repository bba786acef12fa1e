"""A network of the user's own around a stack of xformers' factory: facts, taps and images are found."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from vitconv.cli.main import run
from vitconv.errors import Refused
from vitconv.hosts.base.host import Spec
from vitconv.hosts.base.images import image_shape
from vitconv.layout.semantics import Semantics
from vitconv.registry import HOSTS, load

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")

# Written as a user would, without this package; `twin` puts the twin in the library's place.
SOURCE = """
import torch
from torch import nn


def config(style):
    return {
        "block_type": "encoder",
        "dim_model": 16,
        "num_layers": 2,
        "residual_norm_style": style,
        "multi_head_config": {
            "num_heads": 2,
            "residual_dropout": 0.0,
            "attention": {"name": "scaled_dot_product", "dropout": 0.0, "causal": False},
        },
        "feedforward_config": {"name": "MLP", "dropout": 0.0, "activation": "gelu", "hidden_layer_multiplier": 4},
    }


class Patches(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Conv2d(3, 16, 4, 4)

    def forward(self, x):
        return self.proj(x).flatten(2).transpose(1, 2)


class Mine(nn.Module):
    def __init__(self, style="pre", twin=True, eps=None):
        super().__init__()
        self.patch_embed = Patches()
        self.cls_token = nn.Parameter(torch.randn(1, 1, 16))
        self.pos_embed = nn.Parameter(torch.randn(1, 10, 16))
        if twin:
            from vitconv.vit.xformers_style.encoder import xformer

            self.backbone = xformer(config(style), "0.0.28.post3")
        else:
            from xformers.factory.model_factory import xFormer, xFormerConfig

            self.backbone = xFormer.from_config(xFormerConfig([config(style)]))
        for m in self.backbone.modules():
            if isinstance(m, nn.LayerNorm) and eps is not None:
                m.eps = eps
        self.head = nn.Sequential(nn.LayerNorm(16, eps=1e-6), nn.Linear(16, 5))

    def forward(self, x):
        x = self.patch_embed(x)
        x = torch.cat((self.cls_token.expand(len(x), -1, -1), x), 1) + self.pos_embed
        logits = self.head(self.backbone(x))
        return {"logits": logits, "CLS": logits[:, 0]}


class Two(Mine):
    def __init__(self):
        super().__init__()
        self.other = Mine().backbone
"""
TIMM = """

def timms():
    from timm.models.vision_transformer import VisionTransformer

    return VisionTransformer(img_size=12, patch_size=4, embed_dim=16, depth=2, num_heads=2, num_classes=5)
"""


@pytest.fixture
def user(tmp_path: Path):
    path = tmp_path / "my_network.py"
    path.write_text(SOURCE + TIMM, encoding="utf-8")
    yield path
    sys.modules.pop("vitconv_user_my_network", None)


@pytest.mark.parametrize("twin", [True, False], ids=["twin", "library"])
@pytest.mark.parametrize("style", ["pre", "post", "deepnorm"])
def test_facts_taps_and_images_are_found(user: Path, style: str, twin: bool) -> None:
    if not twin:
        pytest.importorskip("xformers.factory", reason="no xformers with a factory")
    built = load(HOSTS, "python").build(Spec(f"{user}:Mine", options={"style": style, "twin": twin}))
    facts = built.facts
    assert (facts.norm_placement, facts.heads, facts.activation) == (style, 2, "gelu")
    assert (facts.norm_eps, facts.final_norm_eps) == (1e-5, 1e-6)
    assert facts.residual_alpha == ((2 * 2) ** 0.25 if style == "deepnorm" else None)
    assert built.inputs.shape == (3, 12, 12)
    assert {"embed", "blocks.0.attn", "blocks.1.mlp", "blocks.1"} <= set(built.taps)
    assert built(torch.randn(2, 3, 12, 12)).shape == (2, 5)
    assert "stack of xformers' factory" in " ".join(built.notes)


def test_its_own_eps_is_seen(user: Path) -> None:
    built = load(HOSTS, "python").build(Spec(f"{user}:Mine", options={"eps": 1e-3}))
    assert built.facts.norm_eps == 1e-3


def test_two_stacks_are_no_one_network_of_the_factory(user: Path) -> None:
    built = load(HOSTS, "python").build(Spec(f"{user}:Two"))
    assert built.host == "python"
    assert built.facts.norm_placement is None


@pytest.mark.slow
def test_verify_names_the_eps_between_timm_and_the_users_network(user: Path, capsys) -> None:
    pytest.importorskip("timm")
    order = ["verify", f"python:{user}:timms", f"python:{user}:Mine"]
    assert run(order) == 1
    assert "eps of the norms in the blocks is 1e-5" in capsys.readouterr().out
    assert run([*order, "--set-b", "eps=1e-6"]) == 0, capsys.readouterr().out


class Images(nn.Module):
    """A convolution and what may tell the size of images."""

    def __init__(self, rows: int | None = None, **attributes: object) -> None:
        super().__init__()
        self.proj = nn.Conv2d(2, 8, 4, 4)
        if rows:
            self.pos_embed = nn.Parameter(torch.zeros(1, rows, 8))
        for name, value in attributes.items():
            setattr(self, name, value)


@pytest.mark.parametrize(
    ("network", "facts", "size"),
    [
        (Images(), {}, (224, 224)),
        (Images(rows=17), {}, (16, 16)),
        (Images(rows=16), {}, (16, 16)),
        (Images(rows=15), {}, (224, 224)),
        (Images(rows=17, img_size=(12, 20)), {}, (12, 20)),
        (Images(rows=17, image_size=32), {}, (32, 32)),
        (Images(rows=17, img_size=32), {"image_size": (8, 8)}, (8, 8)),
        (Images(img_size=None), {}, (224, 224)),
    ],
    ids=["nothing", "with class", "without class", "no square", "pair", "number", "told", "none"],
)
def test_the_size_of_images(network: Images, facts: dict, size: tuple[int, int]) -> None:
    assert image_shape(network, Spec(facts=Semantics().replaced(facts))) == (2, *size)


def test_decoders_are_refused_by_the_host_and_left_to_the_names_of_the_users_modules() -> None:
    real = pytest.importorskip("xformers.factory.model_factory", reason="no xformers with a factory")
    attention = {"num_heads": 2, "attention": {"name": "scaled_dot_product", "causal": False, "dropout": 0.0}}
    decoder = {
        "block_type": "decoder",
        "dim_model": 16,
        "multi_head_config_masked": attention,
        "multi_head_config_cross": dict(attention),
        "feedforward_config": {"name": "MLP", "dropout": 0.0, "activation": "gelu", "hidden_layer_multiplier": 4},
    }
    host = load(HOSTS, "xformers")
    with pytest.raises(Refused, match="only encoder stacks"):
        host.build(Spec("", options={"config": [decoder], "wrap": "none"}))
    stack = real.xFormer.from_config(real.xFormerConfig([{**decoder, "multi_head_config_cross": dict(attention)}]))
    assert not host.accepts(stack)
