"""A: a set that has lost tensors is not taken for another architecture in silence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from kit import Answer, State, equal, prefixed, rand_t, save, tensors, vitconv


def to_timm(path: Path, contents: Any, *more: object) -> tuple[Answer, State | None]:
    out = path / "out.safetensors"
    answer = vitconv("convert", save(path / "s.pth", contents), out, "--to", "timm", *more)
    return answer, tensors(out) if out.exists() else None


def without(state: State, part: str) -> State:
    return {key: value for key, value in state.items() if not key.startswith(part)}


def test_a_final_norm_that_is_not_there_is_told(tmp_path: Path) -> None:
    answer, _ = to_timm(tmp_path, without(rand_t(), "norm."))
    assert "warning: there is no norm after the last block" in answer.out
    pooled = {key.replace("norm.", "fc_norm.") if key.startswith("norm.") else key: v for key, v in rand_t().items()}
    for whole in (rand_t(), pooled):
        (tmp_path / "out.safetensors").unlink(missing_ok=True)
        answer, written = to_timm(tmp_path, whole)
        assert written is not None
        assert "warning" not in answer.out


def test_a_class_token_that_is_not_there_is_told(tmp_path: Path) -> None:
    answer, _ = to_timm(tmp_path, without(rand_t(), "cls_token"))
    assert "warning: 17 positions make no square grid, 16 beside 1 for tokens would" in answer.out
    (tmp_path / "out.safetensors").unlink()
    answer, written = to_timm(tmp_path, rand_t(cls=False))
    assert written is not None
    assert "warning" not in answer.out
    (tmp_path / "out.safetensors").unlink()
    state = {**rand_t(cls=False), "pos_embed": torch.randn(1, 17, 32)}
    answer, written = to_timm(tmp_path, state, "--set", "grid=1x17")
    assert written is not None
    assert "warning" not in answer.out


@pytest.mark.parametrize(
    ("full", "part"), [("model", "model_ema"), ("student", "teacher"), ("state_dict", "state_dict_ema")]
)
@pytest.mark.parametrize("prefix", ["", "backbone."], ids=["bare", "prefixed"])
def test_fewer_layers_than_in_the_copy_beside_it_is_asked_about(
    full: str, part: str, prefix: str, tmp_path: Path
) -> None:
    less = without(rand_t(2), "blocks.1")
    contents = {full: prefixed(rand_t(1), prefix), part: less}
    answer, written = to_timm(tmp_path, contents)
    assert answer.code == 3
    assert f"{part} would be taken by default, but lacks layers that {full} holds: blocks.1." in answer.err
    assert written is None
    assert equal(to_timm(tmp_path, contents, "--branch", part)[1], less)
    (tmp_path / "out.safetensors").unlink()
    assert equal(to_timm(tmp_path, contents, "--branch", full)[1], rand_t(1))


def test_other_tensors_that_only_the_copy_has_are_told(tmp_path: Path) -> None:
    answer, written = to_timm(tmp_path, {"model": rand_t(1), "model_ema": without(rand_t(2), "head.")})
    assert answer.code == 0, answer.text
    assert equal(written, rand_t(2, head=False))
    assert "warning: model_ema lacks head.weight, head.bias, which model holds" in answer.out


def test_a_copy_with_the_heads_of_training_is_no_fuller_one(tmp_path: Path) -> None:
    student = {**prefixed(rand_t(1, head=False), "backbone."), "dino_head.mlp.0.weight": torch.randn(3, 3)}
    answer, written = to_timm(tmp_path, {"student": student, "teacher": prefixed(rand_t(2, head=False), "backbone.")})
    assert answer.code == 0, answer.text
    assert equal(written, rand_t(2, head=False))
    assert "warning" not in answer.out


def test_a_smaller_student_beside_its_teacher_is_fine(tmp_path: Path) -> None:
    answer, written = to_timm(tmp_path, {"student": without(rand_t(1), "blocks.1"), "teacher": rand_t(2)})
    assert answer.code == 0, answer.text
    assert equal(written, rand_t(2))
    assert "warning" not in answer.out


def test_the_names_that_are_known_of_a_stranger_are_told(tmp_path: Path) -> None:
    state = {"pos_embed": torch.zeros(1, 5, 8), "cls_token": torch.zeros(1, 1, 8), "foo.bar": torch.zeros(3)}
    answer, _ = to_timm(tmp_path, state)
    assert answer.code == 1
    assert "only pos_embed, cls_token are names that one has" in answer.err
    answer, _ = to_timm(tmp_path, {"foo.bar": torch.zeros(3)})
    assert "none has any of their names" in answer.err
