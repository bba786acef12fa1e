"""H: files of other frameworks, damaged headers and scales under other names are told by their cause."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch
from kit import DIM, PATCH, rand_t, save, tensors, vitconv


def test_matrices_that_lie_the_other_way_round_are_told(tmp_path: Path) -> None:
    """PaddlePaddle/PaddleClas: linear weights are (in, out)."""
    path = tmp_path / "vit.pdparams"
    path.write_bytes(pickle.dumps({k: (v.T if v.ndim == 2 else v).numpy() for k, v in rand_t().items()}, 2))
    answer = vitconv("convert", path, tmp_path / "o.safetensors")
    assert answer.code == 1, answer.text
    assert "if every matrix were transposed" in answer.err
    assert "(in, out)" in answer.err


@pytest.mark.parametrize("prefix", ["", "module.backbone."])
def test_patches_of_videos_are_told(prefix: str, tmp_path: Path) -> None:
    """facebookresearch/vjepa2#149."""
    state = rand_t(head=False)
    state["patch_embed.proj.weight"] = torch.randn(DIM, 3, 2, PATCH, PATCH)
    path = save(tmp_path / "s.pth", {"target_encoder": {prefix + k: v for k, v in state.items()}})
    answer = vitconv("convert", path, tmp_path / "o.safetensors")
    assert answer.code == 1, answer.text
    assert "videos (tubelets)" in answer.err


def test_no_cause_is_made_up_for_other_shapes(tmp_path: Path) -> None:
    state = rand_t()
    state["blocks.1.mlp.fc2.weight"] = torch.randn(DIM, 100)
    answer = vitconv("convert", save(tmp_path / "s.pth", state), tmp_path / "o.safetensors")
    assert answer.code == 1, answer.text
    assert "shapes do not fit" in answer.err
    assert "transposed" not in answer.err
    assert "videos" not in answer.err


@pytest.mark.parametrize(
    "drop", [(), ("--drop", "*.scale_weight", "--drop", "scaled_fp8")], ids=["as it is", "dropped"]
)
def test_scales_of_comfyui_are_no_tensors_to_drop(drop: tuple[str, ...], tmp_path: Path) -> None:
    """invoke-ai/InvokeAI#9333."""
    state = rand_t(head=False)
    for key in [k for k in state if k.endswith("attn.qkv.weight")]:
        state[key] = state[key].to(torch.float8_e4m3fn)
        state[key.replace(".weight", ".scale_weight")] = torch.tensor(0.5)
    state["scaled_fp8"] = torch.zeros(0, dtype=torch.float8_e4m3fn)
    out = tmp_path / "o.safetensors"
    answer = vitconv("convert", save(tmp_path / "s.safetensors", state), out, *drop)
    assert answer.code == 3, answer.text
    assert "the weights are quantised" in answer.err
    assert not out.exists()


def test_a_header_of_zeros_is_told(tmp_path: Path) -> None:
    """EricTan7/VeritasPP#2: the first bytes of an uploaded file are zeros."""
    path = save(tmp_path / "s.safetensors", rand_t())
    path.write_bytes(bytes(8) + path.read_bytes()[8:])
    answer = vitconv("inspect", path)
    assert answer.code == 3
    assert "the first 8 bytes, the length of the header, are zeros" in answer.err


@pytest.mark.parametrize("first", ["vit", "params", "classifier"])
def test_msgpack_of_flax_is_told(first: str, tmp_path: Path) -> None:
    """A folder of the hub may hold flax_model.msgpack beside, or in place of, the others."""
    path = tmp_path / "flax_model.msgpack"
    path.write_bytes(b"\x82" + bytes([0xA0 + len(first)]) + first.encode() + b"\x84\xaaembeddings" + bytes(64))
    answer = vitconv("inspect", path)
    assert answer.code == 3
    assert "msgpack file, as Flax writes" in answer.err


def test_patches_of_videos_are_told_beside_names_that_are_unknown(tmp_path: Path) -> None:
    """facebookresearch/mae_st#17: positions in space and time, and patches with a third axis."""
    state = {k: v for k, v in rand_t(head=False).items() if k != "pos_embed"}
    state |= {"patch_embed.proj.weight": torch.randn(DIM, 3, 2, PATCH, PATCH)}
    state["pos_embed_temporal"] = torch.ones(1, 8, DIM)
    answer = vitconv("inspect", save(tmp_path / "s.pth", state))
    assert "unknown here: pos_embed_temporal\n" in answer.out
    assert "videos (tubelets)" in answer.out


def test_a_resnet_of_clip_is_told_beside_its_text_tower(tmp_path: Path) -> None:
    """RN50 and the like: the text tower has the names of the blocks of a vision transformer."""
    block = {"attn.in_proj_weight": (48, 16), "attn.in_proj_bias": (48,), "attn.out_proj.weight": (16, 16)}
    block |= {"attn.out_proj.bias": (16,), "mlp.c_fc.weight": (64, 16), "mlp.c_fc.bias": (64,)}
    block |= {"mlp.c_proj.weight": (16, 64), "mlp.c_proj.bias": (16,)}
    block |= {f"ln_{i}.{k}": (16,) for i in (1, 2) for k in ("weight", "bias")}
    state = {f"transformer.resblocks.{i}.{k}": torch.randn(s) for i in (0, 1) for k, s in block.items()}
    state |= {"positional_embedding": torch.randn(7, 16), "text_projection": torch.randn(16, 8)}
    state |= {f"visual.layer{i}.0.conv{j}.weight": torch.randn(4, 4, 3, 3) for i in (1, 2, 3, 4) for j in (1, 2, 3)}
    state |= {"visual.conv1.weight": torch.randn(4, 3, 3, 3), "visual.attnpool.positional_embedding": torch.randn(5, 4)}
    answer = vitconv("convert", save(tmp_path / "s.pth", state), tmp_path / "o.safetensors")
    assert answer.code == 3, answer.text
    assert "a ResNet (CLIP has one too), not a vision transformer" in answer.err


def test_layers_of_experts_in_swin_are_told(tmp_path: Path) -> None:
    """microsoft/Swin-Transformer, swin_transformer_moe.py: some blocks have experts in place of an MLP."""
    source = Path(__file__).parents[2] / "fixtures" / "golden" / "stages" / "swin-scale.safetensors"
    state = {k.removeprefix("weight."): v for k, v in tensors(source).items() if k.startswith("weight.")}
    state = {k: v for k, v in state.items() if not k.startswith("layers.1.blocks.0.mlp.")}
    state["layers.1.blocks.0.mlp._moe_layer.gates.0.wg.weight"] = torch.randn(4, 16)
    state["layers.1.blocks.0.mlp._moe_layer.experts.batched_fc1_w"] = torch.randn(4, 16, 16)
    answer = vitconv("convert", save(tmp_path / "s.pth", state), tmp_path / "o.safetensors", "--to", "timm-swin")
    assert answer.code == 3, answer.text
    assert "layers of experts (Swin-MoE)" in answer.err
