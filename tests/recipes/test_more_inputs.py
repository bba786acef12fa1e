"""One more input for kinds of A and H whose recipe gives one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from kit import DIM, equal, prefixed, rand_t, save, tensors, vitconv


def to_timm(source: Path, *more: object):
    out = source.parent / "out.safetensors"
    out.unlink(missing_ok=True)
    answer = vitconv("convert", source, out, "--to", "timm", *more)
    return answer, tensors(out) if out.exists() else None


@pytest.mark.parametrize(
    "keys",
    [["_flat_param"], ["blocks.0._flat_param", "blocks.1._flat_param", "_flat_param"], ["flat_param_0"]],
    ids=["whole", "by block", "older name"],
)
def test_a08_flat_parameters_of_any_wrapping(keys: list[str], tmp_path: Path) -> None:
    answer, written = to_timm(save(tmp_path / "s.pth", {"model": {k: torch.randn(500) for k in keys}}))
    assert answer.code == 3
    assert "FSDP" in answer.err and "full state dict" in answer.err
    assert written is None


@pytest.mark.parametrize("first", ["student", "teacher"])
def test_a10_the_order_in_the_file_does_not_choose(first: str, tmp_path: Path) -> None:
    states = {"student": rand_t(1), "teacher": rand_t(2)}
    contents = dict(sorted(states.items(), key=lambda item: item[0] != first))
    answer, written = to_timm(save(tmp_path / "s.pth", {**contents, "epoch": 3}))
    assert answer.code == 0, answer.text
    assert equal(written, rand_t(2))


@pytest.mark.parametrize("block", [0, 1])
def test_a16_one_block_named_otherwise(block: int, tmp_path: Path) -> None:
    """transformers' names in one block: never half."""
    state = {k.replace(f"blocks.{block}.mlp.fc1", f"encoder.layer.{block}.mlp.up"): v for k, v in rand_t().items()}
    answer, written = to_timm(save(tmp_path / "s.pth", state))
    assert answer.code == 1
    assert f"encoder.layer.{block}.mlp.up.weight" in answer.err and f"blocks.{block}.mlp.fc1.weight" in answer.err
    assert written is None


@pytest.mark.parametrize("classes", [1, 3, 1000])
def test_a19_the_number_of_classes_is_said(classes: int, tmp_path: Path) -> None:
    found = vitconv("inspect", save(tmp_path / "s.safetensors", rand_t(classes=classes)), "--json")
    assert found.json["facts"]["classes"] == classes


def test_a22_only_the_average_and_its_counters(tmp_path: Path) -> None:
    state = prefixed(rand_t(2), "ema_model.") | {"initted": torch.tensor(True), "step": torch.tensor(7)}
    answer, written = to_timm(save(tmp_path / "s.pth", state))
    assert answer.code == 0, answer.text
    assert equal(written, rand_t(2))
    assert "counters were dropped" in answer.out


def test_h04_h05_views_of_every_kind(tmp_path: Path) -> None:
    state = rand_t()
    wide = torch.randn(2 * DIM, DIM)
    state["blocks.0.attn.proj.weight"] = wide[::2]
    state["blocks.1.attn.proj.weight"] = torch.randn(DIM, 2 * DIM)[:, DIM:]
    state["patch_embed.proj.weight"] = torch.randn(4, 4, 3, DIM).permute(3, 2, 0, 1)
    state["head.bias"] = torch.randn(1).expand(5)
    answer, written = to_timm(save(tmp_path / "s.pth", state))
    assert answer.code == 0, answer.text
    assert equal(written, state)


def test_h16_an_index_of_more_shards_than_hold_anything(tmp_path: Path) -> None:
    source = save(tmp_path / "t.safetensors", rand_t())
    assert vitconv("convert", source, tmp_path / "s", "--to", "timm", "--shard-size", "70KB").code == 0
    path = tmp_path / "s" / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["weight_map"]["ghost.weight"] = "model-00001-of-00002.safetensors"
    path.write_text(json.dumps(index))
    answer, written = to_timm(tmp_path / "s")
    assert answer.code == 3
    assert "ghost.weight" in answer.err or "model-00001-of-00002.safetensors" in answer.err
    assert written is None
    answer, written = to_timm(tmp_path / "s", "--ignore-index")
    assert answer.code == 0, answer.text
    assert equal(written, rand_t())


@pytest.mark.parametrize("same", [True, False], ids=["the same bits", "other bits"])
def test_h17_a_single_file_beside_shards(same: bool, tmp_path: Path) -> None:
    source = save(tmp_path / "t.safetensors", rand_t())
    assert vitconv("convert", source, tmp_path / "s", "--to", "timm", "--shard-size", "70KB").code == 0
    save(tmp_path / "s" / "model.safetensors", rand_t(0 if same else 5))
    answer, written = to_timm(tmp_path / "s")
    assert answer.code == (0 if same else 3), answer.text
    if same:
        assert equal(written, rand_t())
    else:
        assert "two checkpoints" in answer.err and written is None
