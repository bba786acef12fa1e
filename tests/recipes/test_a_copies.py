"""A: several copies of one network in a file: which is which by name, at any depth, and the counters beside them."""

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


def ema_pytorch() -> State:
    counters = {"initted": torch.tensor([True]), "step": torch.tensor([4])}
    return {**prefixed(rand_t(1), "online_model."), **prefixed(rand_t(2), "ema_model."), **counters}


@pytest.mark.parametrize("name", ["ema", "ema_state_dict", "model_ema", "swa"])
@pytest.mark.parametrize(("option", "seed"), [((), 2), (("--weights", "ema"), 2), (("--weights", "raw"), 1)])
def test_the_innermost_name_says_which_copy_it_is(
    name: str, option: tuple[str, ...], seed: int, tmp_path: Path
) -> None:
    answer, written = to_timm(tmp_path, {name: ema_pytorch()}, *option)
    assert answer.code == 0, answer.text
    assert equal(written, rand_t(seed))
    assert f"{name}.{'online_model' if seed == 2 else 'ema_model'}" in answer.out


def test_the_ema_within_an_ema_comes_before_plain_weights(tmp_path: Path) -> None:
    answer, written = to_timm(tmp_path, {"state_dict": rand_t(5), "ema_state_dict": ema_pytorch()})
    assert answer.code == 0, answer.text
    assert equal(written, rand_t(2))


@pytest.mark.parametrize("part", ["encoder", "network", "net", "model", "backbone"])
def test_byol_takes_the_online_network_by_any_name(part: str, tmp_path: Path) -> None:
    state = prefixed(rand_t(1), f"online_{part}.") | prefixed(rand_t(2), f"target_{part}.")
    answer, written = to_timm(tmp_path, state)
    assert answer.code == 0, answer.text
    assert equal(written, rand_t(1))
    assert "which BYOL evaluates" in answer.out
    assert f"target_{part} (--branch)" in answer.out
    assert "JEPA" not in answer.out
    (tmp_path / "out.safetensors").unlink()
    assert equal(to_timm(tmp_path, state, "--branch", f"target_{part}")[1], rand_t(2))


@pytest.mark.parametrize("context", ["encoder", "context_encoder"])
def test_jepa_takes_the_target_encoder(context: str, tmp_path: Path) -> None:
    answer, written = to_timm(tmp_path, prefixed(rand_t(1), f"{context}.") | prefixed(rand_t(2), "target_encoder."))
    assert answer.code == 0, answer.text
    assert equal(written, rand_t(2))
    assert "I-JEPA" in answer.out
    assert f"{context} (--branch)" in answer.out


@pytest.mark.parametrize(
    ("first", "second", "seed"),
    [
        ("student_backbone.", "teacher_backbone.", 2),
        ("backbone.", "backbone_momentum.", 1),
        ("model.student.backbone.", "model.teacher.backbone.", 2),
        ("module.algorithm.online_encoder.", "module.algorithm.target_encoder.", 1),
        ("model.net.", "model.net_ema.", 2),
    ],
)
def test_copies_are_known_by_the_words_of_their_names_at_any_depth(
    first: str, second: str, seed: int, tmp_path: Path
) -> None:
    state = prefixed(rand_t(1), first) | prefixed(rand_t(2), second)
    answer, written = to_timm(tmp_path, {"state_dict": state})
    assert answer.code == 0, answer.text
    assert equal(written, rand_t(seed))


@pytest.mark.parametrize("beside", [{}, prefixed(rand_t(1), "model.")], ids=["alone", "beside the raw ones"])
def test_the_counter_of_an_average_is_no_weight(beside: State, tmp_path: Path) -> None:
    state = {**beside, **prefixed(rand_t(2), "model_ema.module."), "model_ema.num_updates": torch.tensor(4)}
    answer, written = to_timm(tmp_path, {"state_dict": state})
    assert answer.code == 0, answer.text
    assert equal(written, rand_t(2))
    assert "counters were dropped: 'num_updates'" in answer.out


def test_the_average_of_a_teacher_comes_before_the_teacher(tmp_path: Path) -> None:
    for names in (("student", "teacher", "teacher_ema"), ("teacher_ema", "student", "teacher")):
        answer, written = to_timm(tmp_path, {name: rand_t(2 if name == "teacher_ema" else 1) for name in names})
        assert answer.code == 0, answer.text
        assert equal(written, rand_t(2))
        (tmp_path / "out.safetensors").unlink()
