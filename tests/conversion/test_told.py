"""What the caller tells: facts and axes that the tensors contradict, patterns as messages write them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from conversion_kit import timm_vit

from vitconv.cli.main import run
from vitconv.conversion.facts import contradictions

Save = Callable[..., Path]
SIZES = {"d": 32, "a": 32, "n": 16, "p": 4, "q": 4, "c": 3}


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({"heads": 5}, "heads=5 does not divide the attention width 32"),
        ({"grid": (8, 8)}, "grid=8x8 has 64 places, the position table 16"),
        ({"image_size": (32, 32)}, "image_size=32x32 makes a grid of 8x8, 64 places, the position table has 16"),
        ({"mean": (0.5, 0.5)}, "mean has 2 values, images have 3 channels"),
    ],
    ids=["heads", "grid", "image size", "mean"],
)
def test_a_fact_that_cannot_be_true(told: dict[str, object], said: str) -> None:
    assert contradictions(told, SIZES) == [said]


@pytest.mark.parametrize(
    "told",
    [{}, {"heads": 4}, {"grid": (2, 8)}, {"image_size": (17, 19)}, {"mean": (0.5,)}, {"std": (1.0, 1.0, 1.0)}],
    ids=["none", "heads", "grid", "image size with a rest", "one mean", "three"],
)
def test_a_fact_that_can_be_true(told: dict[str, object]) -> None:
    assert contradictions(told, SIZES) == []


def test_what_no_tensor_states_is_not_checked() -> None:
    assert contradictions({"heads": 5, "grid": (8, 8), "image_size": (64, 64), "mean": (1.0, 2.0)}, {"d": 32}) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--set", "heads=5"), "does not divide"),
        (("--set", "grid=8x8"), "64 places"),
        (("--axis", "h=5"), "does not divide"),
        (("--axis", "z=3"), "no tensor has such an axis; there are a, c, d, h, i, m, n, o, p, q"),
        (("--axis", "i=3"), "there are 2 layers"),
        (("--axis", "h=4", "--set", "heads=8"), "contradict each other"),
    ],
    ids=["heads", "grid", "axis h", "unknown axis", "depth", "axis and fact"],
)
def test_nothing_is_written_when_the_tensors_say_otherwise(
    save: Save, tmp_path: Path, capsys, words: tuple[str, ...], said: str
) -> None:
    source, out = save(timm_vit().state_dict()), tmp_path / "out.safetensors"
    assert run(["convert", str(source), str(out), "--to", "hf-vit", *words]) == 2
    assert said in capsys.readouterr().err
    assert not out.exists()


def test_the_axis_h_states_the_heads(save: Save, capsys) -> None:
    source = save(timm_vit().state_dict())
    assert run(["inspect", str(source), "--axis", "h=4"]) == 0
    assert "heads           4 " in capsys.readouterr().out


@pytest.mark.parametrize(
    "pattern",
    ["blocks.{i}.attn.{q,k}_norm.*", "blocks.{0..1}.attn.?_norm.{weight,bias}", "blocks.*_norm.*"],
    ids=["layers", "as messages write it", "stars"],
)
def test_drop_takes_the_patterns_that_messages_write(save: Save, tmp_path: Path, pattern: str) -> None:
    source, out = save(timm_vit(qk_norm=True).state_dict()), tmp_path / "out.safetensors"
    assert run(["convert", str(source), str(out), "--to", "hf-vit", "--drop", pattern]) == 0
    assert out.exists()


def test_what_is_consented_to_is_not_asked_for_again(save: Save, tmp_path: Path, capsys) -> None:
    source, out = save(timm_vit(qk_norm=True).state_dict()), tmp_path / "out.safetensors"
    assert run(["convert", str(source), str(out), "--to", "hf-vit", "--drop", "*q_norm*"]) == 3
    said = capsys.readouterr().err
    assert "no place for 4 tensors" in said
    assert "k_norm" in said
    assert "q_norm" not in said


def test_the_set_that_was_read_in_part_is_not_among_the_others(save: Save, tmp_path: Path, capsys) -> None:
    network = {f"model.{k}": v for k, v in timm_vit().state_dict().items()}
    source = save({"state_dict": {**network, "criterion.weight": torch.ones(7)}}, "lightning.ckpt")
    assert run(["convert", str(source), str(tmp_path / "out.safetensors"), "--to", "hf-vit"]) == 0
    said = capsys.readouterr().out
    assert "left aside: 'criterion.weight'" in said
    assert "other sets of weights" not in said


@pytest.mark.parametrize(("dtype", "code"), [("F16", 0), ("bf16", 0), ("i8", 2), ("", 2)])
def test_a_dtype_in_either_case(save: Save, tmp_path: Path, capsys, dtype: str, code: int) -> None:
    source, out = save(timm_vit().state_dict()), tmp_path / "out.safetensors"
    assert run(["convert", str(source), str(out), "--to", "hf-vit", "--dtype", dtype]) == code
    assert ("--edit" in capsys.readouterr().err) is False


def test_why_nothing_fits_is_on_lines_of_its_own(save: Save, capsys) -> None:
    source = save({"conv1.weight": torch.ones(3), "bn1.bias": torch.ones(2)})
    assert run(["inspect", str(source)]) == 1
    said = capsys.readouterr().out
    assert "\nWhy\n  bn1.bias, conv1.weight\n" in said
    assert "\\n" not in said


def test_the_choices_of_two_dialects_have_two_titles(capsys) -> None:
    assert run(["show", "timm", "xformers"]) == 0
    said = capsys.readouterr().out
    assert "\nChoices of timm\n" in said
    assert "\nChoices of xformers\n" in said
