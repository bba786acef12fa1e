"""Public reports on networks whose parameters hold nothing, and on init functions that fail or only scale (J)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from kit import vitconv
from torch import nn
from torch.nn import init

from vitconv.errors import Refused, UsageError
from vitconv.inits import apply, coverage
from vitconv.parity.verify import verify

timm = pytest.importorskip("timm")

NETWORKS = """
import timm, torch
SIZES = dict(img_size=16, patch_size=4, embed_dim=32, depth=2, num_heads=4, num_classes=5)

def whole():
    return timm.create_model("vit_tiny_patch16_224", **SIZES)

def partitioned(keep=0):
    net = whole()
    for p in list(net.parameters())[keep:]:
        p.data = torch.empty(0)
    return net

def some_kept():
    return partitioned(4)

def on_meta():
    with torch.device("meta"):
        return whole()

def matrices(module):
    for p in module.parameters():
        if p.dim() > 1:
            torch.nn.init.xavier_uniform_(p)
"""


@pytest.fixture
def networks(tmp_path: Path) -> str:
    (tmp_path / "partitions.py").write_text(NETWORKS, encoding="utf-8")
    return f"python:{tmp_path / 'partitions.py'}"


# deepspeed: transformers#43847 and #28245, Megatron-DeepSpeed#193, DeepSpeedExamples#820.
# meta: dinov2#476, litgpt#1131, bionemo-recipes#1368.
UNHELD = [
    pytest.param("partitioned", "ZeRO-3", "GatheredParameters", id="transformers#43847"),
    pytest.param("some_kept", "28 of 32 parameters", "GatheredParameters", id="Megatron-DeepSpeed#193-some-kept"),
    pytest.param("on_meta", "meta device", "to_empty", id="dinov2#476"),
]


@pytest.mark.parametrize(("made", "what", "cure"), UNHELD)
@pytest.mark.parametrize("command", ["check", "init-fn", "verify"])
def test_parameters_without_elements_are_refused(command: str, made: str, what: str, cure: str, networks: str) -> None:
    words = {
        "check": ("check", f"{networks}:{made}"),
        "init-fn": ("check", f"{networks}:{made}", "--init-fn", f"{networks}:matrices"),
        "verify": ("verify", f"{networks}:whole", f"{networks}:{made}"),
    }[command]
    answer = vitconv(*words)
    assert answer.code == 3, answer.text
    assert what in answer.text and cure in answer.text


def small() -> nn.Module:
    return timm.create_model(
        "vit_tiny_patch16_224", img_size=16, patch_size=4, embed_dim=32, depth=2, num_heads=4, num_classes=5
    )


def test_nothing_is_filled_where_there_is_nothing() -> None:
    net = small()
    net.head.weight.data = torch.empty(0)
    for call in (lambda: apply(net, "timm"), lambda: verify(small(), net), lambda: coverage(net, lambda m: None)):
        with pytest.raises(Refused, match=r"1 of 32 .*\[0\].*head.weight"):
            call()


def test_a_table_of_no_rows_is_held() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    net.table = nn.Parameter(torch.empty(0, 4))
    rows = {row.name: row.state for row in coverage(net, lambda m: [init.normal_(p) for p in m.parameters()])}
    assert rows["0.weight"] == "set"


def divided_by_depth(net: nn.Module) -> None:
    for i, block in enumerate(net.blocks):
        block.attn.proj.weight.data.div_((2 * (i + 1)) ** 0.5)


def needs_a_weight(layer: nn.Module) -> None:
    if isinstance(layer, nn.Linear):
        init.trunc_normal_(layer.weight, std=0.02)
    elif not isinstance(layer, (nn.LayerNorm, nn.Conv2d, nn.Identity, nn.Dropout, nn.GELU)):
        layer.nothing_of_that_name  # noqa: B018


def asks_for_a_key(net: nn.Module) -> None:
    init.normal_(dict(net.named_parameters())["blocks.0.attention.qkv.weight"])


def test_a_function_that_only_scales_is_not_tried_on_layers() -> None:
    rows = {row.name: row.state for row in coverage(small(), divided_by_depth)}
    assert rows["blocks.1.attn.proj.weight"] == "scaled"
    assert rows["blocks.1.mlp.fc2.weight"] == "left"


@pytest.mark.parametrize(
    ("fn", "says"),
    [
        pytest.param(asks_for_a_key, "asks_for_a_key fails on VisionTransformer: KeyError", id="a-key-of-another"),
        pytest.param(needs_a_weight, "needs_a_weight fails on VisionTransformer: AttributeError", id="an-attribute"),
    ],
)
def test_a_function_that_fails_is_the_users_own(fn: Callable[[nn.Module], Any], says: str) -> None:
    net = small()
    before = {k: v.clone() for k, v in net.state_dict().items()}
    with pytest.raises(UsageError, match=says):
        coverage(net, fn)
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())
