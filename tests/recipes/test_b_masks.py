"""B05: masks of zeros, as DINOv3's published files hold them; E: what keys do not say is not written as if they did."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from eva_kit import eva02
from kit import DIM, State, prefixed, rand_t, save, tensors, vitconv


def dinov3(bias: float) -> State:
    """Return DINOv3's own names around T, every mask of zeros."""
    state = {k: v for k, v in rand_t(head=False).items() if k != "pos_embed"}
    state |= {"mask_token": torch.randn(1, DIM), "rope_embed.periods": 100.0 ** (torch.arange(2) / 2)}
    for i in range(2):
        state |= {f"blocks.{i}.ls{j}.gamma": torch.full((DIM,), 1.0 + j) for j in (1, 2)}
        state[f"blocks.{i}.attn.qkv.bias_mask"] = torch.zeros(3 * DIM)
        state[f"blocks.{i}.attn.qkv.bias"] *= bias
    return state


@pytest.mark.parametrize("prefix", ["", "backbone."])
@pytest.mark.parametrize("bias", [0.0, 1.0], ids=["biases of zeros", "hidden biases"])
def test_a_bias_under_a_mask_of_zeros_is_none(bias: float, prefix: str, tmp_path: Path) -> None:
    """facebookresearch/dinov3#195, facebookresearch/vggt-omega#61."""
    out = tmp_path / "o.safetensors"
    source = save(tmp_path / "s.pth", prefixed(dinov3(bias), prefix))
    answer = vitconv("convert", source, out, "--to", "hf-dinov3", "--set", "grid=4x4", "--prove")
    assert answer.code == 0, answer.text
    biases = [v for k, v in tensors(out).items() if k.endswith(("q_proj.bias", "k_proj.bias", "v_proj.bias"))]
    assert not any(v.any() for v in biases)
    assert ("biases under masks of zeros" in answer.out) == bool(bias)
    said = json.loads((tmp_path / "config.json").read_text())
    assert said["query_bias"] == said["value_bias"] == bool(biases)


def test_the_masks_of_a_code_come_back(tmp_path: Path) -> None:
    out = tmp_path / "o.safetensors"
    answer = vitconv("convert", save(tmp_path / "s.pth", dinov3(0.0)), out, "--to", "dinov3", "--prove")
    assert answer.code == 0, answer.text
    mask = tensors(out)["blocks.1.attn.qkv.bias_mask"]
    assert mask.reshape(3, DIM).mean(1).tolist() == [1, 0, 1]


@pytest.mark.parametrize("more", [(), ("position=rope", "rope_reference=4x4"), ("position=learned",)])
def test_positions_beside_a_table_are_not_taken_for_all(more: tuple[str, ...], tmp_path: Path) -> None:
    """lldacing/ComfyUI_PuLID_Flux_ll#59: EVA02-CLIP without its waves has the keys of a network that has none."""
    state = {k: v for k, v in eva02().items() if not k.startswith("rope.")}
    told = ["heads=4", "grid=4x4", *more]
    options = [x for fact in told for x in ("--set", fact)]
    answer = vitconv("convert", save(tmp_path / "s.pth", state), tmp_path / "o", "--to", "timm-eva", *options)
    assert answer.code == 0, answer.text
    config = tmp_path / "o" / "config.json"
    if more:
        said = json.loads(config.read_text())["model_args"]
        assert said["use_rot_pos_emb"] == (len(more) == 2)
    else:
        assert not config.exists()
        assert "--set position=learned|rope" in answer.out


def test_factors_of_loralib_are_told_how_to_merge(tmp_path: Path) -> None:
    """microsoft/LoRA#75: factors without a configuration, of one matrix for q and v."""
    state = rand_t(head=False)
    state |= {f"blocks.{i}.attn.qkv.lora_A": torch.randn(8, DIM) for i in range(2)}
    state |= {f"blocks.{i}.attn.qkv.lora_B": torch.randn(2 * DIM, 4) for i in range(2)}
    answer = vitconv("convert", save(tmp_path / "s.pth", state), tmp_path / "o.safetensors")
    assert answer.code == 3, answer.text
    assert "model.eval()" in answer.err


def test_another_index_that_is_whole_is_named(tmp_path: Path) -> None:
    """liltom-eth/llama2-webui#7: the index of safetensors is there, their shards are not, and those of .bin are."""
    folder = tmp_path / "f"
    folder.mkdir()
    state = rand_t()
    for end, kind in (("safetensors", "model"), ("bin", "pytorch_model")):
        map_ = dict.fromkeys(state, f"{kind}-00001-of-00001.{end}")
        (folder / f"{kind}.{end}.index.json").write_text(json.dumps({"weight_map": map_}))
    torch.save(state, folder / "pytorch_model-00001-of-00001.bin")
    answer = vitconv("inspect", folder)
    assert answer.code == 3, answer.text
    other = folder / "pytorch_model.bin.index.json"
    assert f"or name {other}" in answer.err
    assert vitconv("inspect", other).code == 0
