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
from vitconv.layout.edits.interpolate import resize_matrix


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
