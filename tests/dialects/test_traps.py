"""Faults that no shape check sees, by the number they have in the list of traps: each is caught, or cannot happen."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from vitconv.cli.main import run
from vitconv.conversion.translate import translate
from vitconv.errors import Refused

GOLDEN = Path(__file__).parents[2] / "fixtures" / "golden"
State = dict[str, torch.Tensor]


def golden(name: str) -> State:
    loaded: State = torch.load(GOLDEN / f"{name}.pth", weights_only=True)
    return loaded


def test_trap_3_a_gated_dinov3_is_written_with_silu(tmp_path: Path) -> None:
    source = GOLDEN / "dinov3" / "dinov3-swiglu.pth"
    assert run(["convert", str(source), str(tmp_path / "hf"), "--to", "hf-dinov3", "--set", "image_size=16x24"]) == 0
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert (config["hidden_act"], config["use_gated_mlp"], config["layer_norm_eps"]) == ("silu", True, 1e-5)


def test_trap_5_a_square_projection_is_turned() -> None:
    weights = golden("clip/clip-tower")
    there = translate(weights, "clip", "hf-clip-vision")
    assert weights["proj"].shape == (16, 16)
    assert torch.equal(there["visual_projection.weight"], weights["proj"].T)
    assert there["vision_model.embeddings.class_embedding"].shape == (16,)


def test_trap_6_quick_gelu_is_in_the_configuration(tmp_path: Path) -> None:
    options = ["--to", "hf-clip-vision", "--set", "heads=2", "--set", "grid=4x4"]
    assert (
        run(["convert", str(GOLDEN / "clip" / "clip-tower.pth"), str(tmp_path / "a"), "--from", "clip", *options]) == 0
    )
    assert json.loads((tmp_path / "a" / "config.json").read_text())["hidden_act"] == "quick_gelu"
    # The same names under open_clip say nothing, so nothing is made up.
    assert run(["convert", str(GOLDEN / "clip" / "clip-tower.pth"), str(tmp_path / "b"), *options]) == 0
    assert not (tmp_path / "b" / "config.json").exists()


def test_trap_8_a_key_bias_is_dropped_only_when_it_is_zero() -> None:
    weights = golden("deit/deit-3")
    with pytest.raises(Refused, match="does not store"):
        translate(weights, "deit", "timm-eva")
    for i in range(2):
        weights[f"blocks.{i}.attn.qkv.bias"][16:32] = 0
    assert "blocks.0.attn.q_bias" in translate(weights, "deit", "timm-eva")


def test_trap_11_a_norm_after_pooling_is_no_norm_before_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights = golden("dino/dino-tiny")
    moved = {k.replace("norm.weight", "fc_norm.weight") if k == "norm.weight" else k: v for k, v in weights.items()}
    moved = {k.replace("norm.bias", "fc_norm.bias") if k == "norm.bias" else k: v for k, v in moved.items()}
    save_file(moved, tmp_path / "s.safetensors")
    assert run(["convert", str(tmp_path / "s.safetensors"), str(tmp_path / "o.safetensors"), "--to", "hf-vit"]) == 3
    assert "norm" in capsys.readouterr().err
    assert not (tmp_path / "o.safetensors").exists()


def test_trap_12_position_ids_that_are_not_counted_up_are_refused() -> None:
    weights = translate(golden("clip/clip-tower"), "clip", "hf-clip-vision")
    ids = torch.arange(17)[None]
    assert translate({**weights, "vision_model.embeddings.position_ids": ids}, "hf-clip-vision", "clip")
    with pytest.raises(Refused, match="should be the constant"):
        translate({**weights, "vision_model.embeddings.position_ids": ids.flip(1)}, "hf-clip-vision", "clip")


def test_trap_12_an_index_of_relative_positions_is_that_of_the_grid(tmp_path: Path) -> None:
    weights = golden("beit/beit-author")
    torch.save(weights, tmp_path / "a.pth")
    assert run(["convert", str(tmp_path / "a.pth"), str(tmp_path / "a.safetensors"), "--to", "hf-beit"]) == 0
    key = "blocks.0.attn.relative_position_index"
    weights[key] = weights[key].T.contiguous()
    torch.save(weights, tmp_path / "b.pth")
    assert run(["convert", str(tmp_path / "b.pth"), str(tmp_path / "b.safetensors"), "--to", "hf-beit"]) == 3


@pytest.mark.parametrize("release", ["1.2.0", "1.6.9", "1.26.14"])
def test_trap_16_a_norm_of_pixels_has_no_place_elsewhere_and_can_be_kept(release: str, tmp_path: Path) -> None:
    source = str(GOLDEN / "vit-pytorch" / f"vit-pytorch-{release}.pth")
    out, residue = tmp_path / "o.safetensors", tmp_path / "r.safetensors"
    sides = ["--axis", "p=4", "--axis", "q=4"]
    assert run(["convert", source, str(out), "--to", "timm", *sides]) == 3
    assert not out.exists()
    assert run(["convert", source, str(out), "--to", "timm", *sides, "--residue", str(residue)]) == 0
    assert load_file(residue)["embed.pixel_norm.weight"].shape == (3, 4, 4)


@pytest.mark.parametrize("name", ["mae/mae-pretrain", "moco-v3/moco-v3-tiny", "ijepa/ijepa-tiny"])
def test_trap_17_a_stored_table_is_carried_and_never_made_anew(name: str) -> None:
    weights = golden(name)
    there = translate(weights, name.partition("/")[0], "canonical")
    rows = weights["pos_embed"][0]
    assert torch.equal(there["embed.pos"], rows if len(rows) == 16 else rows[1:])
