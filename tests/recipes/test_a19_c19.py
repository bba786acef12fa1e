"""A19: a probe and the backbone it was put on; C19: a table made for another shape of image."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from kit import DIM, HEADS, MLP, PATCH, State, rand_t, save, vitconv


def inspected(path: Path, state: State, *more: object) -> dict[str, object]:
    answer = vitconv("inspect", save(path, state), "--json", *more)
    assert answer.code == 0, answer.text
    facts: dict[str, object] = answer.json["facts"]
    return facts


def test_a19_a_head_is_said_and_the_backbone_has_one_hash(tmp_path: Path) -> None:
    whole, bare = rand_t(), rand_t(head=False)
    bare = {k: whole[k] for k in bare}
    one = inspected(tmp_path / "a.safetensors", whole, "--health")
    two = inspected(tmp_path / "b.safetensors", bare, "--health")
    assert (one["heads on it"], two["heads on it"]) == ("classifier, 5 classes", "none")
    assert one["backbone sha256"] == two["backbone sha256"]
    assert len(str(one["backbone sha256"])) == 64


@pytest.mark.parametrize("to", ["hf-vit", "torchvision", "canonical", "vit-jax"])
def test_a19_the_hash_is_that_of_the_network_and_not_of_its_layout(to: str, tmp_path: Path) -> None:
    source = save(tmp_path / "s.safetensors", rand_t())
    assert vitconv("convert", source, tmp_path / "o.safetensors", "--to", to, "--set", f"heads={HEADS}").code == 0
    here = vitconv("inspect", source, "--health", "--json").json["facts"]["backbone sha256"]
    there = vitconv("inspect", tmp_path / "o.safetensors", "--health", "--json").json["facts"]["backbone sha256"]
    assert here == there


def test_a19_one_bit_changes_it_and_only_headers_are_read_unasked(tmp_path: Path) -> None:
    state = rand_t()
    one = inspected(tmp_path / "a.safetensors", state, "--health")
    tuned = {**state, "head.weight": state["head.weight"] + 1}
    assert inspected(tmp_path / "b.safetensors", tuned, "--health")["backbone sha256"] == one["backbone sha256"]
    state["blocks.1.mlp.fc1.bias"][3] *= -1
    assert inspected(tmp_path / "c.safetensors", state, "--health")["backbone sha256"] != one["backbone sha256"]
    assert "backbone sha256" not in inspected(tmp_path / "d.safetensors", state)


def sincos(rows: int, columns: int) -> torch.Tensor:
    """A table of sines and cosines as MAE has it: half of the channels by column, half by row."""
    waves = 10000.0 ** -(torch.arange(DIM // 4, dtype=torch.float64) / (DIM // 4))
    y, x = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
    parts = [f(place.flatten()[:, None] * waves) for place in (x, y) for f in (torch.sin, torch.cos)]
    return torch.cat(parts, 1).float()


def config(folder: Path, size: tuple[int, int]) -> None:
    args = {"img_size": list(size), "patch_size": PATCH, "embed_dim": DIM, "depth": 2, "num_heads": HEADS}
    args["mlp_ratio"] = MLP // DIM
    cfg = {"input_size": [3, *size], "fixed_input_size": True, "num_classes": 5}
    raw = {"architecture": "vit_tiny_patch16_224", "num_classes": 5, "model_args": args, "pretrained_cfg": cfg}
    (folder / "config.json").write_text(json.dumps(raw))


@pytest.mark.parametrize(
    ("table", "size", "warning"),
    [
        ((4, 4), (8, 32), "repeats as one of 4x4 does"),
        ((2, 8), (8, 32), "positions are 4x4 too"),
        (None, (8, 32), "positions are 4x4 too"),
        ((4, 4), (16, 16), ""),
        (None, (16, 16), ""),
        (None, (8, 28), ""),
    ],
    ids=["made for 4x4", "made for 2x8", "trained", "square", "trained square", "no square count"],
)
def test_c19_a_square_table_under_images_that_are_not(
    table: tuple[int, int] | None, size: tuple[int, int], warning: str, tmp_path: Path
) -> None:
    grid = (size[0] // PATCH, size[1] // PATCH)
    state = rand_t(grid=grid)
    if table:
        state["pos_embed"][0, 1:] = sincos(*table)
    save(tmp_path / "s" / "model.safetensors", state)
    config(tmp_path / "s", size)
    for answer in (
        vitconv("inspect", tmp_path / "s"),
        vitconv("convert", tmp_path / "s", tmp_path / "o.safetensors", "--to", "hf-vit"),
    ):
        assert answer.code == 0, answer.text
        assert (warning in answer.text) if warning else ("warning" not in answer.text)
    assert math.prod(grid) == state["pos_embed"].shape[1] - 1
