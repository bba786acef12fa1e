"""Moments that cannot be carried: every reason is said, and nothing is written."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from optimizer_kit import SETS, Run, adamw, call, lightning


def test_l04_moments_of_reordered_parameters_are_refused(tmp_path: Path, capsys) -> None:
    first = Run(tmp_path, adamw)
    held = torch.load(first.path, weights_only=True)
    state = held["optimizer"]["state"]
    state[2], state[3] = state[3], state[2]
    torch.save(held, first.path)
    assert call(first.path, tmp_path / "o.safetensors", "--to", "timm", "--optimizer") == 3
    err = capsys.readouterr().err
    assert "number 2 has moments [32]" in err
    assert not (tmp_path / "o.safetensors").exists()
    assert call(first.path, tmp_path / "o.safetensors", "--to", "timm") == 0
    assert "left out" in capsys.readouterr().out


def _ema(held: dict[str, Any]) -> None:
    held["model_ema"] = {k: v + 1 for k, v in held["model"].items()}


def _factored(held: dict[str, Any]) -> None:
    for s in held["optimizer"]["state"].values():
        s["exp_avg_sq_row"] = torch.zeros(3, dtype=torch.float64)


def _two(held: dict[str, Any]) -> None:
    held["optimizer_d"] = copy.deepcopy(held["optimizer"])


def _none(held: dict[str, Any]) -> None:
    del held["optimizer"]


def _stranger(held: dict[str, Any]) -> None:
    group = held["optimizer"]["param_groups"][0]
    group["param_names"] = [f"other.{i}" for i in group["params"]]


def _more(held: dict[str, Any]) -> None:
    held["optimizer"]["param_groups"][0]["params"].append(999)


REFUSED = [
    (_ema, 3, "stepped the raw weights"),
    (_factored, 3, "not one number per element"),
    (_two, 2, "2 optimizers (optimizer, optimizer_d)"),
    (_none, 2, "holds no state of an optimizer"),
    (_stranger, 3, "parameters that the weights do not have"),
    (_more, 3, "no known way of numbering"),
]


@pytest.mark.parametrize(("change", "code", "words"), REFUSED, ids=[c.__name__.strip("_") for c, _, _ in REFUSED])
def test_what_cannot_be_carried(tmp_path: Path, capsys, change: Any, code: int, words: str) -> None:
    first = Run(tmp_path, adamw)
    held = torch.load(first.path, weights_only=True)
    change(held)
    torch.save(held, first.path)
    assert call(first.path, tmp_path / "o.safetensors", "--to", "hf-vit", "--optimizer") == code
    assert words in capsys.readouterr().err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["train.pth"]


def test_raw_weights_are_taken_when_asked_for(tmp_path: Path) -> None:
    first = Run(tmp_path, adamw)
    held = torch.load(first.path, weights_only=True)
    _ema(held)
    torch.save(held, first.path)
    out = tmp_path / "o.safetensors"
    assert call(first.path, out, "--to", "timm", "--optimizer", "--branch", "model") == 0


@pytest.mark.parametrize("option", [("--dtype", "BF16"), ("--edit", "change-classes:to=3")], ids=["cast", "classes"])
def test_edits_that_make_new_parameters(tmp_path: Path, capsys, option: tuple[str, ...]) -> None:
    first = Run(tmp_path, adamw)
    assert call(first.path, tmp_path / "o.safetensors", "--to", "timm", "--optimizer", *option) in (2, 3)
    assert not (tmp_path / "o.safetensors").exists()
    capsys.readouterr()


def test_parameters_of_different_groups_cannot_become_one(tmp_path: Path, capsys) -> None:
    first = Run(tmp_path, adamw)
    assert call(first.path, tmp_path / "hf", "--to", "hf-vit", "--optimizer", *SETS) == 0
    path = tmp_path / "hf" / "optimizer.pt"
    held = torch.load(path, weights_only=True)
    group = held["param_groups"][0]
    key = next(n for n in group["params"] if "key.weight" in n)
    group["params"].remove(key)
    held["param_groups"].append({**group, "params": [key], "weight_decay": 0.5})
    torch.save(held, path)
    args = (tmp_path / "hf", tmp_path / "o.safetensors", "--to", "timm", "--optimizer")
    assert call(*args) == 3
    assert "different groups (weight_decay 0.1 and 0.5)" in capsys.readouterr().err
    held["param_groups"].pop()
    group["params"].append(key)
    held["state"][key]["step"] += 1
    torch.save(held, path)
    assert call(*args) == 3
    assert "different step" in capsys.readouterr().err


def test_a_sorted_file_does_not_number_parameters(tmp_path: Path, capsys) -> None:
    """transformers' Trainer: model.safetensors and optimizer.pt with numbers."""
    first = Run(tmp_path, adamw)
    folder = tmp_path / "trainer"
    folder.mkdir()
    from safetensors.torch import save_file

    save_file(first.module.state_dict(), folder / "model.safetensors", metadata={"format": "pt"})
    torch.save(first.optimizer.state_dict(), folder / "optimizer.pt")
    args = (folder, tmp_path / "o.safetensors", "--to", "timm", "--optimizer")
    assert call(*args) == 3
    assert "--optimizer-names" in capsys.readouterr().err
    (tmp_path / "names.txt").write_text("\n".join(n for n, _ in first.module.named_parameters()))
    assert call(*args, "--optimizer-names", tmp_path / "names.txt") == 0
    got = torch.load(tmp_path / "o.optimizer.pt", weights_only=True)
    for number, name in enumerate(dict(first.module.named_parameters())):
        assert torch.equal(got["state"][name]["exp_avg"], first.optimizer.state_dict()["state"][number]["exp_avg"])


def test_an_optimizer_that_is_there_is_not_replaced(tmp_path: Path, capsys) -> None:
    first = Run(tmp_path, adamw)
    (tmp_path / "o.optimizer.pt").write_bytes(b"mine")
    assert call(first.path, tmp_path / "o.safetensors", "--to", "timm", "--optimizer") == 3
    assert "is there already" in capsys.readouterr().err
    assert not (tmp_path / "o.safetensors").exists()


@pytest.mark.parametrize(("out", "name"), [("o.safetensors", "o.safetensors"), ("out", "out/model.safetensors")])
def test_a_conversion_that_is_run_again_replaces_its_own(out: str, name: str, tmp_path: Path) -> None:
    first = Run(tmp_path, adamw)
    args = ("--to", "timm", "--optimizer")
    assert call(first.path, tmp_path / out, *args) == 0
    assert call(first.path, tmp_path / out, *args) == 0
    # Weights of another origin are no reason to replace an optimizer.
    from safetensors.torch import save_file

    save_file(first.module.state_dict(), tmp_path / name, metadata={"format": "pt"})
    assert call(first.path, tmp_path / out, *args) == 3


def test_averaged_weights_of_lightning_have_no_moments(tmp_path: Path, capsys) -> None:
    """WeightAveraging: state_dict is the average, current_model_state what was stepped."""
    first = Run(tmp_path, adamw)
    held = lightning(torch.load(first.path, weights_only=True))
    held["current_model_state"] = {k: v + 1 for k, v in held["state_dict"].items()}
    torch.save(held, first.path)
    args = (first.path, tmp_path / "o.safetensors", "--to", "timm", "--optimizer")
    assert call(*args) == 3
    assert "current_model_state" in capsys.readouterr().err
    assert call(*args, "--branch", "current_model_state") == 0


def test_a_dry_run_plans_the_moments_too(tmp_path: Path, capsys) -> None:
    first = Run(tmp_path, adamw)
    assert call(first.path, "--to", "hf-vit", "--optimizer", "--dry-run") == 0
    assert "matched by their order" in capsys.readouterr().out
    held = torch.load(first.path, weights_only=True)
    _factored(held)
    torch.save(held, first.path)
    assert call(first.path, "--to", "hf-vit", "--optimizer", "--dry-run") == 3
    assert "not one number per element" in capsys.readouterr().err
