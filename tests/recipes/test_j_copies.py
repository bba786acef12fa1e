"""Public reports on layers that are copies, or one module used several times (J), in networks of any names."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from kit import rand_t, save, vitconv
from torch import Tensor, nn

from vitconv.checks.base.check import Finding
from vitconv.checks.base.run import run_one
from vitconv.checks.base.target import context_of
from vitconv.parity.verify import verify
from vitconv.registry import CHECKS, load


class Stack(nn.Module):
    """A ViT around a stack of layers, in names of its own."""

    def __init__(self, layers: Callable[[], list[nn.Module]]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.place = nn.Conv2d(3, 32, 4, 4), nn.Parameter(0.02 * torch.randn(1, 16, 32))
        self.layers, self.out = nn.Sequential(*layers()), nn.Linear(32, 5)

    def forward(self, images: Tensor) -> Tensor:
        x = self.stem(images).flatten(2).transpose(1, 2) + self.place
        return self.out(self.layers(x).mean(1))


def layer() -> nn.Module:
    return nn.TransformerEncoderLayer(32, 4, 64, 0.0, "gelu", batch_first=True, norm_first=True)


def torchs() -> list[nn.Module]:
    return [nn.TransformerEncoder(layer(), 3, enable_nested_tensor=False)]


def cloned() -> list[nn.Module]:
    first = layer()
    return [copy.deepcopy(first) for _ in range(3)]


def redrawn() -> list[nn.Module]:
    """As nn.Transformer does: matrices anew, biases as they were copied."""
    made = torchs()
    for p in made[0].parameters():
        if p.dim() > 1:
            nn.init.xavier_uniform_(p)
    return made


def once() -> list[nn.Module]:
    one = layer()
    return [one, one, one]


def one_mlp() -> list[nn.Module]:
    made = [layer() for _ in range(3)]
    for each in made[1:]:
        each.linear1 = made[0].linear1
    return made


def anew() -> list[nn.Module]:
    return [layer() for _ in range(3)]


def findings(layers: Callable[[], list[nn.Module]]) -> list[Finding]:
    images = torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    return list(run_one(context_of(Stack(layers), images=images), load(CHECKS, "init-audit")).findings)


@pytest.mark.parametrize(
    ("layers", "level", "says"),
    [
        pytest.param(torchs, "error", "the same bits twice", id="pytorch#86274"),
        pytest.param(torchs, "error", "in_proj_weight", id="pytorch#72253-and-120396"),
        pytest.param(cloned, "error", "the same bits twice", id="annotated-transformer#9"),
        pytest.param(cloned, "error", "layers.2", id="torchtune#2270"),
        pytest.param(redrawn, "warn", "linear1.bias", id="annotated-transformer#9-redrawn"),
        pytest.param(once, "warn", "used in several places", id="espnet#1278"),
        pytest.param(one_mlp, "warn", "layers.0.linear1.weight = layers.1.linear1.weight", id="encodecmae#3"),
        pytest.param(anew, "info", "no two layers the same", id="layers-of-their-own"),
    ],
)
def test_layers_that_are_copies_or_one(layers: Callable[[], list[nn.Module]], level: str, says: str) -> None:
    found = findings(layers)
    assert found[0].level == level
    assert all(f.level == "info" for f in found[1:])
    assert says in found[0].text


@pytest.mark.parametrize(
    ("value", "says"),
    [
        pytest.param(float("nan"), "NaN or infinite", id="not-finite"),
        pytest.param(1e20, "memory nobody wrote", id="bionemo-recipes#1368"),
        pytest.param(0.5, "hold one value only", id="constant"),
    ],
)
def test_values_that_nobody_drew_in_a_network_of_any_names(value: float, says: str) -> None:
    class Filled(Stack):
        def __init__(self) -> None:
            super().__init__(anew)
            nn.init.constant_(self.layers[1].linear1.weight, value)

    images = torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    found = run_one(context_of(Filled(), images=images), load(CHECKS, "init-audit")).findings
    assert any(f.level == "error" and says in f.text and "layers.1.linear1.weight" in f.where for f in found)


timm = pytest.importorskip("timm")


def small(shared: str = "") -> nn.Module:
    net = timm.create_model(
        "vit_tiny_patch16_224", img_size=16, patch_size=4, embed_dim=32, depth=2, num_heads=4, num_classes=5
    )
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(0.3 * torch.randn(p.shape, generator=generator))
    if shared == "mlp":
        net.blocks[1].mlp = net.blocks[0].mlp
    elif shared == "norms":
        for block in net.blocks:
            block.norm2 = block.norm1
    return net.eval()


@pytest.mark.parametrize(
    ("a", "b", "verdict", "says"),
    [
        pytest.param("", "mlp", "differs", "blocks.{0..1}.mlp.up.weight", id="encodecmae#3"),
        pytest.param("", "norms", "differs", "blocks.{0..1}.norm1.weight", id="norms-of-a-block"),
        pytest.param("mlp", "mlp", "same", "", id="shared-in-both"),
    ],
)
def test_a_module_used_twice_is_a_difference_that_is_named(a: str, b: str, verdict: str, says: str) -> None:
    result = verify(small(a), small(b), precisions=(), inputs=("coloured",), skip=("why",))
    assert result.verdict == verdict, result.reason
    if verdict == "differs":
        assert "shared in B" in result.reason and "used several times" in result.reason
        assert says in result.reason


def test_weights_that_one_tensor_cannot_hold_are_not_blamed_on_float32(tmp_path: Path) -> None:
    source = save(tmp_path / "t.safetensors", rand_t())
    (tmp_path / "one.py").write_text(
        "import timm\n"
        "def one():\n"
        "    net = timm.create_model('vit_tiny_patch16_224', img_size=16, patch_size=4, embed_dim=32, depth=2,\n"
        "                            num_heads=4, num_classes=5)\n"
        "    net.blocks[1].mlp = net.blocks[0].mlp\n"
        "    return net\n",
        encoding="utf-8",
    )
    facts = [x for f in ("heads=4", "norm_eps=1e-6", "final_norm_eps=1e-6", "activation=gelu") for x in ("--set-a", f)]
    words = ("--set-a", "norm_placement=pre", "--set-a", "kv_normalised=true", "--set-a", "pooling=token")
    words = (*words, "--precision", "fp64", "--inputs", "coloured", "--skip", "why")
    answer = vitconv("verify", source, f"python:{tmp_path / 'one.py'}:one", *facts, *words)
    assert answer.code == 1, answer.text
    assert "shared in B" in answer.text
    assert "were rounded" not in answer.text
