"""Windows of another size: tables interpolated by a named rule, gradients by its transpose, Swin V2 by a fact."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from vitconv.conversion.convert import convert
from vitconv.conversion.facts import Wishes
from vitconv.conversion.prepare import Order
from vitconv.errors import Refused, UsageError
from vitconv.layout.edits.geometric import resize_offsets
from vitconv.layout.edits.interpolate import resize_grid, resize_matrix


def net(v2: bool = False, window: int = 2) -> dict[str, torch.Tensor]:
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    entry = "swinv2_tiny_window8_256" if v2 else "swin_tiny_patch4_window7_224"
    sizes = {"img_size": 16, "patch_size": 2, "embed_dim": 8, "depths": (2, 2), "num_heads": (2, 4), "num_classes": 5}
    state = timm.create_model(entry, window_size=window, **sizes).state_dict()
    return {k: torch.randn_like(v) for k, v in state.items()}


def edited(
    tmp_path: Path, state: dict[str, torch.Tensor], edit: str, **facts: Any
) -> tuple[dict[str, torch.Tensor], Any]:
    to = "timm-swinv2" if any("logit_scale" in k for k in state) else "timm-swin"
    save_file(state, tmp_path / "s.safetensors")
    prepared, _ = convert(
        tmp_path / "s.safetensors", tmp_path / "o.safetensors", Order(to, Wishes(facts=facts), edits=[edit])
    )
    return load_file(tmp_path / "o.safetensors"), prepared.plan.network


@pytest.mark.parametrize("rule", ["bicubic", "bicubic-antialias", "bilinear"])
def test_each_head_is_resized_by_the_rule(tmp_path: Path, rule: str) -> None:
    state = {k: v.double() for k, v in net().items()}
    there, network = edited(tmp_path, state, f"resize-window:to=4,rule={rule}")
    matrix = resize_matrix((3, 3), (7, 7), rule)
    for key in (k for k in state if k.endswith("bias_table")):
        assert np.abs(there[key].numpy() - matrix @ state[key].numpy()).max() < 1e-14
    assert network.facts.window == (4,)
    assert network.log[-1].edit == "resize-window"
    assert not network.log[-1].exact


def test_swin_v2_changes_a_fact_only(tmp_path: Path) -> None:
    state = net(v2=True, window=4)
    there, network = edited(tmp_path, state, "resize-window:8", window=(4,), pretrained_window=(0,))
    assert all(torch.equal(there[k], x) for k, x in state.items())
    assert (network.facts.window, network.facts.pretrained_window) == ((8,), (4, 4))


@pytest.mark.parametrize(
    ("edit", "facts", "error", "says"),
    [
        ("resize-window:4", {}, Refused, "say rule=bicubic"),
        ("resize-window:to=0", {}, UsageError, "a whole number above zero"),
    ],
)
def test_what_is_not_said_is_asked_for(
    tmp_path: Path, edit: str, facts: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=re.escape(says)):
        edited(tmp_path, net(), edit, **facts)


@pytest.mark.parametrize(
    ("facts", "says"),
    [({}, "--set window=8"), ({"window": (4,)}, "--set pretrained_window=0")],
    ids=["window", "before"],
)
def test_swin_v2_is_asked_what_its_weights_do_not_say(tmp_path: Path, facts: dict[str, Any], says: str) -> None:
    with pytest.raises(Refused, match=re.escape(says)):
        edited(tmp_path, net(v2=True, window=4), "resize-window:8", **facts)


@pytest.mark.parametrize("rule", ["bicubic", "geometric-linear"])
@pytest.mark.parametrize(
    ("window", "to"), [((4, 2), "2x5"), ((3, 3), "3x6"), ((2, 4), "4")], ids=["both", "made-wide", "made-square"]
)
def test_windows_that_are_no_squares(tmp_path: Path, rule: str, window: tuple[int, int], to: str) -> None:
    timm = pytest.importorskip("timm")
    sizes = {"img_size": 48, "patch_size": 2, "embed_dim": 8, "depths": (2, 2), "num_heads": (2, 4), "num_classes": 5}
    torch.manual_seed(0)
    state = timm.create_model("swin_tiny_patch4_window7_224", window_size=window, **sizes).state_dict()
    state = {k: torch.randn_like(v) for k, v in state.items()}
    there, network = edited(
        tmp_path, state, f"resize-window:to={to},rule={rule}", window=(window[0],), window_width=(window[1],)
    )
    high, _, wide = to.partition("x")
    target = (int(high), int(wide or high))
    again = timm.create_model("swin_tiny_patch4_window7_224", window_size=target, **sizes)
    again.load_state_dict(there, strict=True)
    assert network.facts.window == (target[0],)
    assert network.facts.window_width == ((target[1],) if wide else None)
    source, size = ((2 * w[0] - 1, 2 * w[1] - 1) for w in (window, target))
    key = next(k for k in state if k.endswith("bias_table"))
    resize = resize_offsets if rule == "geometric-linear" else resize_grid
    assert np.abs(there[key].numpy() - resize(state[key].numpy(), source, size, rule)).max() < 1e-6


def test_a_table_that_is_no_squares_asks_for_its_window(tmp_path: Path) -> None:
    state = net()
    for key in (k for k in state if k.endswith("bias_table")):
        state[key] = torch.randn(3 * 7, state[key].shape[1])
    with pytest.raises(Refused, match=r"21 rows, those of no square window; say the window it has, as from=4x8"):
        edited(tmp_path, state, "resize-window:to=4,rule=bicubic")
    there, _ = edited(tmp_path, state, "resize-window:to=4,rule=bicubic,from=2x4")
    assert all(v.shape[0] == 49 for k, v in there.items() if k.endswith("bias_table"))


FLATTEN = Path(__file__).parents[3] / "fixtures" / "golden" / "flatten" / "flatten-fixed-swin-model-LLSS.pth"


def flatten(tmp_path: Path, edit: str, **facts: Any) -> dict[str, torch.Tensor]:
    order = Order("flatten-swin", Wishes(facts=facts), edits=[edit])
    convert(FLATTEN, tmp_path / "o.safetensors", order)
    return load_file(tmp_path / "o.safetensors")


def test_positions_of_focused_blocks_are_resized_as_flattens_code_does(tmp_path: Path) -> None:
    here = torch.load(FLATTEN, weights_only=True)
    there = flatten(tmp_path, "resize-window:to=7,focused=56,rule=bicubic", image_size=(112, 112))
    for s, side in ((0, 28), (1, 14)):
        key = f"layers.{s}.blocks.1.attn.positional_encoding"
        grid = here[key].permute(0, 2, 1).unflatten(2, (7, 7))
        want = torch.nn.functional.interpolate(grid, size=(side, side), mode="bicubic").flatten(2).permute(0, 2, 1)
        assert there[key].shape == (1, side * side, here[key].shape[2])
        assert (there[key] - want).abs().max() < 1e-12
    assert not any(k.endswith("attn_mask") for k in there)


@pytest.mark.parametrize(
    ("edit", "facts", "says"),
    [
        ("resize-window:to=12,rule=bicubic", {"image_size": (384, 384)}, "say focused=SIDE"),
        ("resize-window:to=12,focused=96,rule=geometric", {"image_size": (384, 384)}, "by rule=bicubic"),
        ("resize-window:to=12,focused=96", {"image_size": (384, 384)}, "by rule=bicubic"),
    ],
    ids=["side", "geometric", "rule"],
)
def test_focused_windows_are_asked_for(tmp_path: Path, edit: str, facts: dict[str, Any], says: str) -> None:
    with pytest.raises(Refused, match=says):
        flatten(tmp_path, edit, **facts)
