"""Rotary positions: no tensor of most layouts tells of them, so they are facts that decide what may be written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from eva_kit import eva02
from kit import equal, open_checkpoint, rand_t, save, tensors, vitconv

from vitconv.layout.dialect import Dialect
from vitconv.layout.encode import contradictions
from vitconv.registry import DIALECTS, load_all

PLAIN = {n: d for n, d in load_all(DIALECTS, plugins=False).items() if d.family == "plain" and n != "canonical"}
ROTARY = {"dinov3", "hf-dinov3", "hf-dinov3-5", "timm-eva", "timm-naflex-eva", "eva", "transformer-engine"}
WITHOUT = ("hf-vit", "torchvision", "xformers", "mae", "deit", "dino", "moco-v3", "dinov2", "hf-dinov2", "hf-beit")


def refused(answer, to: str) -> None:
    assert answer.code == 3, answer.text
    assert f"{to} cannot compute this function" in answer.err
    assert "position: rope here" in answer.err


@pytest.mark.parametrize("name", PLAIN)
def test_every_layout_says_whether_it_turns_queries_and_keys(name: str) -> None:
    dialect: Dialect = PLAIN[name]
    cannot = [v for v in dialect.variants if "position" in contradictions(v, {"position": "rope"})]
    assert bool(cannot) == (name not in ROTARY)
    assert len(cannot) in (0, len(dialect.variants))


@pytest.mark.parametrize("to", WITHOUT)
def test_eva02_is_written_to_no_layout_without_rotary_positions(to: str, tmp_path: Path) -> None:
    source = save(tmp_path / "s.pth", eva02(gated=False, head=False))
    refused(vitconv("convert", source, tmp_path / "o.safetensors", "--to", to, "--set", "heads=4"), to)
    assert not (tmp_path / "o.safetensors").exists()


def test_keys_without_a_table_are_asked_about(tmp_path: Path) -> None:
    """Keys of timm without a position table are those of a plain network without positions, and of a rotary one."""
    state = {k: v for k, v in rand_t(head=False).items() if k != "pos_embed"}
    state |= {"reg_token": torch.zeros(1, 2, 32)} | {
        f"blocks.{i}.{x}": torch.ones(32) for i in range(2) for x in ("ls1.gamma", "ls2.gamma")
    }
    source, out = save(tmp_path / "s.pth", state), tmp_path / "o.safetensors"
    asked = vitconv("convert", source, out, "--to", "xformers", "--edit", "fold-layer-scale", "--edit", "drop:embed.*")
    assert asked.code == 3
    assert "--set position=" in asked.err
    assert vitconv("convert", source, out, "--to", "timm").code == 0


ROTARY_NAMES = (
    "eva02_tiny_patch14_224",
    "vit_small_patch16_dinov3",
    "vit_pe_core_tiny_patch16_384",
    "vit_small_patch16_rope_ape_224",
    "vit_small_patch16_rope_224",
)


@pytest.mark.parametrize("name", ROTARY_NAMES)
def test_a_folder_that_names_a_rotary_network_is_not_written_as_a_plain_one(name: str, tmp_path: Path) -> None:
    """The keys are those of VisionTransformer, and only the name in config.json tells."""
    save(tmp_path / "source" / "model.safetensors", rand_t())
    args = {"depth": 2, "embed_dim": 32, "num_heads": 4, "img_size": 16, "patch_size": 4, "num_classes": 5}
    config = {"architecture": name, "model_args": {**args, "use_abs_pos_emb": True, "num_reg_tokens": 0}}
    (tmp_path / "source" / "config.json").write_text(json.dumps(config))
    refused(vitconv("convert", tmp_path / "source", tmp_path / "o", "--to", "timm"), "timm")
    assert not (tmp_path / "o").exists()


def test_rope_vit_of_timm_without_a_table_is_read(tmp_path: Path) -> None:
    """One bias for q, k and v, LayerScale as gamma, no table: vit_small_patch16_rope_224."""
    state = {k: v for k, v in rand_t().items() if k != "pos_embed"}
    state |= {f"blocks.{i}.gamma_{j}": state["norm.weight"].clone() + i + j for i in range(2) for j in (1, 2)}
    source = save(tmp_path / "s.pth", state)
    assert vitconv("inspect", source, "--json").json["facts"]["dialect"] == "timm-eva"
    out = tmp_path / "o.safetensors"
    answer = vitconv("convert", source, out, "--to", "timm-eva")
    assert answer.code == 0, answer.text
    assert equal(tensors(out), state)
    refused = vitconv("convert", source, tmp_path / "x.safetensors", "--to", "timm")
    assert refused.code == 3
    assert "position" in refused.err


def gridded(state, rows: int, columns: int):
    """Give the waves by row and column, as some files have them."""
    return {k: v.reshape(rows, columns, -1) if "freqs" in k else v for k, v in state.items()}


@pytest.mark.parametrize(
    ("rows", "columns", "reference", "by_place"),
    [(4, 4, 16, True), (4, 4, 4, False), (2, 8, 8, True), (2, 8, 16, False), (2, 2, 16, True), (1, 6, 6, True)],
)
def test_the_size_that_places_are_numbered_to_is_printed_and_carried(
    rows: int, columns: int, reference: int, by_place: bool, tmp_path: Path
) -> None:
    state = eva02(rows, columns, reference)
    source, out = (
        save(tmp_path / "s.pth", state if by_place else gridded(state, rows, columns)),
        tmp_path / "o.safetensors",
    )
    answer = vitconv("convert", source, out, "--to", "timm-eva", "--set", f"grid={rows}x{columns}")
    assert answer.code == 0, answer.text
    assert f"rope_reference: {reference}x{reference}" in answer.out
    facts = json.loads(open_checkpoint(out).metadata["vitconv.facts"])
    assert (facts["rope_reference"], facts["grid"], facts["heads"]) == ([reference] * 2, [rows, columns], 4)
    told = ("--set", f"grid={rows}x{columns}", "--set", "rope_reference=5x5")
    wrong = vitconv("convert", source, tmp_path / "x.safetensors", "--to", "timm-eva", *told)
    assert wrong.code == 3
    assert "rope_reference=5x5 was said" in wrong.err


def test_waves_of_another_grid_than_the_table_are_refused(tmp_path: Path) -> None:
    state = eva02(4, 4) | {k: v for k, v in eva02(8, 8).items() if "freqs" in k}
    answer = vitconv("convert", save(tmp_path / "s.pth", state), tmp_path / "o.safetensors", "--to", "timm-eva")
    assert answer.code == 3
    assert "8x8, 64 places; the position table has 16" in answer.err


def test_waves_that_are_none_or_differ_are_refused(tmp_path: Path) -> None:
    odd = eva02() | {"rope.freqs_cos": eva02()["rope.freqs_cos"] + 0.1}
    answer = vitconv("convert", save(tmp_path / "a.pth", odd), tmp_path / "o.safetensors", "--to", "timm-eva")
    assert (answer.code, "no waves" in answer.err) == (3, True)
    two = eva02(reference=4) | {"rope.freqs_sin": eva02(reference=16)["rope.freqs_sin"]}
    answer = vitconv("convert", save(tmp_path / "b.pth", two), tmp_path / "o.safetensors", "--to", "timm-eva")
    assert (answer.code, "not of one kind" in answer.err) == (3, True)


def dinov3():
    """DINOv3's own names around T, with stored periods."""
    state = {k: v for k, v in rand_t(head=False).items() if k != "pos_embed"}
    state |= {"mask_token": torch.zeros(1, 32), "rope_embed.periods": 100.0 ** (torch.arange(2) / 2)}
    mask = torch.ones(96)
    mask[32:64] = 0
    for i in range(2):
        state |= {f"blocks.{i}.ls{j}.gamma": torch.full((32,), 1.0 + j) for j in (1, 2)}
        state[f"blocks.{i}.attn.qkv.bias_mask"] = mask.clone()
    return state


@pytest.mark.parametrize("dtype", ["BF16", "F16"])
def test_c23_periods_are_not_rounded_in_silence(dtype: str, tmp_path: Path) -> None:
    source, out = save(tmp_path / "s.pth", dinov3()), tmp_path / "o.safetensors"
    answer = vitconv("convert", source, out, "--to", "dinov3", "--dtype", dtype)
    assert answer.code == 0, answer.text
    assert "rope.periods stays F32" in answer.out
    written = tensors(out)
    assert written["rope_embed.periods"].dtype == torch.float32
    assert written["norm.weight"].dtype != torch.float32
    rounded = tmp_path / "r.safetensors"
    answer = vitconv("convert", out, rounded, "--to", "dinov3", "--edit", f"cast:dtype={dtype},only=rope.periods")
    assert answer.code == 0, answer.text
    assert "rounded" in vitconv("inspect", rounded).out
