"""A: layers that are not found are told by their cause: gaps, counting from one, another name, several lists."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from kit import State, rand_t, save, vitconv


def moved(shift: Callable[[int], int]) -> State:
    return {re.sub(r"(?<=blocks\.)\d+", lambda m: str(shift(int(m[0]))), k): v for k, v in rand_t().items()}


def called(name: str) -> State:
    return {k.replace("blocks.", name): v for k, v in rand_t().items()}


GAPS = {
    "from one": (moved(lambda i: i + 1), ["counted from 0 in timm, and the first one here is blocks.1"]),
    "first lost": (
        {k: v for k, v in rand_t().items() if not k.startswith("blocks.0.")},
        ["if blocks.0 was lost, take a whole file"],
    ),
    "every other": (moved(lambda i: 2 * i), ["the layers blocks.1 are not in the file, which has blocks.{0,2}"]),
    "late": (moved(lambda i: i + 6), ["the layers blocks.{0..5} are not in the file, which has blocks.{6..7}"]),
}


@pytest.mark.parametrize("prefix", ["", "module.vit."])
@pytest.mark.parametrize(("state", "words"), GAPS.values(), ids=GAPS.keys())
def test_gaps_between_layers_are_told(state: State, words: list[str], prefix: str, tmp_path: Path) -> None:
    path = save(tmp_path / "s.pth", {f"{prefix}{k}": v for k, v in state.items()})
    answer = vitconv("convert", path, tmp_path / "o.safetensors")
    assert answer.code == 1, answer.text
    for word in words:
        assert word in answer.err
    # What is said of whole layers is not said of each of their tensors.
    assert "missing:" not in answer.err


def test_a_tensor_that_lacks_beside_a_gap_is_named(tmp_path: Path) -> None:
    state = moved(lambda i: 2 * i)
    del state["blocks.2.norm1.bias"]
    answer = vitconv("inspect", save(tmp_path / "s.pth", state))
    assert "the layers blocks.1 are not in the file" in answer.out
    assert "missing: blocks.2.norm1.bias\n" in answer.out


@pytest.mark.parametrize("name", ["blocks1.", "layers_", "encoder.stack.layer", "blk."])
def test_layers_of_another_name_are_told(name: str, tmp_path: Path) -> None:
    answer = vitconv("inspect", save(tmp_path / "s.pth", called(name)))
    assert answer.code == 1
    said = f"the layers are called {name}{{i}} here, and blocks.{{i}} in timm: rename them; every tensor is explained"
    assert said in answer.out
    assert "norm_layer=LayerNorm" in answer.out


def test_the_prefix_of_all_is_told_with_it(tmp_path: Path) -> None:
    path = save(tmp_path / "s.pth", {f"net.{k}": v for k, v in called("blk").items()})
    assert "net.blk{i} here, and blocks.{i} in timm: rename them, and take 'net.' off" in vitconv("inspect", path).out


def test_what_else_is_unknown_is_told_too(tmp_path: Path) -> None:
    state = {k.replace("cls_token", "class_emb"): v for k, v in called("blks.").items()}
    answer = vitconv("inspect", save(tmp_path / "s.pth", state))
    assert "rename them\n" in answer.out
    assert "unknown here: class_emb\n" in answer.out


def test_layers_in_two_lists_are_told(tmp_path: Path) -> None:
    state = {re.sub(r"blocks\.(\d)", lambda m: f"blocks{int(m[1]) + 1}.0", k): v for k, v in rand_t().items()}
    answer = vitconv("inspect", save(tmp_path / "s.pth", state))
    assert "its layers are in 2 lists: blocks1., blocks2." in answer.out


def test_nothing_is_made_up_for_other_networks(tmp_path: Path) -> None:
    state = {f"stages{i}.{k}.weight": rand_t()["norm.weight"] for i in range(3) for k in ("a", "b", "c", "d", "e")}
    answer = vitconv("inspect", save(tmp_path / "s.pth", state))
    assert answer.code == 1
    assert "rename" not in answer.out
    assert "lists" not in answer.out


@pytest.mark.parametrize("inside", ["transformer.blocks.", "encoder.trunk."])
def test_layers_moved_into_another_module_are_no_network_of_their_own(inside: str, tmp_path: Path) -> None:
    """timm#1011: the rest of the names is as it was."""
    answer = vitconv("inspect", save(tmp_path / "s.pth", called(inside)))
    assert answer.code == 1
    assert "these 32 tensors; closest: timm" in answer.out
    assert f"the layers are called {inside}{{i}} here, and blocks.{{i}} in timm: rename them; every" in answer.out


def test_shapes_that_do_not_fit_under_the_other_name_are_told(tmp_path: Path) -> None:
    state = {f"net.{k}": v for k, v in called("blk").items()}
    state["net.blk1.mlp.fc2.weight"] = state["net.blk1.mlp.fc2.weight"][:, :-1]
    answer = vitconv("inspect", save(tmp_path / "s.pth", state))
    assert answer.code == 1
    assert "rename them, and take 'net.' off the others\n" in answer.out
    assert "shapes do not fit: axis m=128 (from blocks.0.mlp.fc2.weight), but blocks.1.mlp.fc2.weight" in answer.out
