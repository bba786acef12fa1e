"""Edits against what timm's own loader makes of the same folder, for whole models: the same state dict comes out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from vitconv.cli.main import run

timm = pytest.importorskip("timm")

SIZES: dict[str, Any] = {
    "img_size": 16,
    "patch_size": 4,
    "embed_dim": 32,
    "depth": 2,
    "num_heads": 4,
    "num_classes": 7,
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("vit_base_patch16_224", SIZES),
    "distilled": ("deit_base_distilled_patch16_224", SIZES),
    "registers": ("vit_base_patch16_224", {**SIZES, "reg_tokens": 2, "no_embed_class": True}),
    "clip": ("vit_base_patch16_clip_224", SIZES),
    "eva": ("eva_giant_patch14_224", SIZES),
}
# {case: (the edit, what timm is asked for)}
EDITS: dict[str, tuple[list[str], dict[str, Any]]] = {
    "one channel": (["change-channels:channels=1"], {"in_chans": 1}),
    "two channels": (["change-channels:channels=2,how=repeat"], {"in_chans": 2}),
    "four channels": (["change-channels:channels=4"], {"in_chans": 4}),
    "six channels": (["change-channels:channels=6"], {"in_chans": 6}),
    "larger images": (["resize-position:to=6x6,rule=bicubic-antialias"], {"img_size": 24}),
    "smaller images": (["resize-position:to=3x3,rule=bicubic-antialias"], {"img_size": 12}),
    "wide images": (["resize-position:to=3x6,rule=bicubic-antialias"], {"img_size": (12, 24)}),
    "smaller patches": (
        ["resize-patch:patch=2,rule=bicubic-antialias"],
        {"patch_size": 2},
    ),
    "larger patches, the same grid": (["resize-patch:patch=8,keep=grid"], {"patch_size": 8, "img_size": 32}),
    "channels, patch and images": (
        [
            "change-channels:channels=5",
            "resize-patch:patch=8,keep=grid",
            "resize-position:to=3x3,rule=bicubic-antialias",
        ],
        {"in_chans": 5, "patch_size": 8, "img_size": 24},
    ),
}


def folder_of(model: str, folder: Path) -> Path:
    """Write a folder that timm opens: random weights, and the configuration that convert puts beside them."""
    name, sizes = MODELS[model]
    net = timm.create_model(name, **sizes)
    gen = torch.Generator().manual_seed(0)
    state = {k: torch.randn(v.shape, generator=gen) for k, v in net.state_dict().items()}
    save_file(state, folder / "in.safetensors")
    from vitconv.hosts.base.host import Spec
    from vitconv.registry import HOSTS, load

    facts = load(HOSTS, "timm").describe(net.eval(), Spec()).facts.known()
    sets = [w for k, v in facts.items() for w in ("--set", f"{k}={_text(v)}") if k != "attention_scale"]
    assert run(["convert", str(folder / "in.safetensors"), str(folder / "net"), *sets]) == 0
    return folder / "net"


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return "x".join(map(str, value)) if len(value) == 2 else ",".join(map(str, value))
    return str(value).lower()


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("model", MODELS)
def test_timms_loader_makes_the_same(model: str, edit: str, tmp_path: Path) -> None:
    folder = folder_of(model, tmp_path)
    edits, asked = EDITS[edit]
    theirs = timm.create_model(f"local-dir:{folder}", pretrained=True, **asked).state_dict()
    words = [w for text in edits for w in ("--edit", text)]
    to = "timm-eva" if model == "eva" else "timm"
    assert run(["convert", str(folder), str(tmp_path / "out"), "--to", to, *words]) == 0
    ours = load_file(tmp_path / "out" / "model.safetensors")
    assert ours.keys() == theirs.keys()
    for key, want in theirs.items():
        assert ours[key].shape == want.shape
        # timm resizes kernels and tables in float32, here it is float64 rounded once.
        assert torch.allclose(ours[key], want, rtol=0, atol=2e-5 * float(want.abs().max())), key
    # The folder that came out opens by itself, at its new sizes.
    again = timm.create_model(f"local-dir:{tmp_path / 'out'}", pretrained=True).state_dict()
    assert all(torch.equal(again[key], ours[key]) for key in ours)


@pytest.mark.parametrize("model", ["plain", "distilled"])
def test_the_classifier_that_timm_starts_anew_is_zeros_by_name(model: str, tmp_path: Path) -> None:
    folder = folder_of(model, tmp_path)
    theirs = timm.create_model(f"local-dir:{folder}", pretrained=True, num_classes=3).state_dict()
    words = ["--edit", "change-classes:classes=3,how=zeros"]
    assert run(["convert", str(folder), str(tmp_path / "out"), "--to", "timm", *words]) == 0
    ours = load_file(tmp_path / "out" / "model.safetensors")
    for key, want in theirs.items():
        if key.startswith("head"):
            assert ours[key].shape == want.shape and not ours[key].any()
        else:
            assert torch.equal(ours[key], want), key
