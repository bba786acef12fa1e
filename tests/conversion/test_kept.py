"""A residue goes back only into the file that was written together with it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from conversion_kit import timm_vit
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from test_place import SETS, call

from vitconv.conversion.kept import OWNER

NAMES = ("a", "b")


@pytest.fixture
def scaled(save) -> Path:
    return save(timm_vit(init_values=0.1).state_dict(), "scaled.safetensors")


@pytest.fixture
def pair(scaled: Path, tmp_path: Path) -> dict[str, Path]:
    """Two networks of one kind, each converted with a residue."""
    other = {k: v + 1 for k, v in load_file(scaled).items()}
    save_file(other, tmp_path / "b.safetensors")
    for name, source in (("a", scaled), ("b", tmp_path / "b.safetensors")):
        kept, out = tmp_path / f"{name}.kept", tmp_path / f"{name}.hf.safetensors"
        assert call(source, out, "--to", "hf-vit", "--residue", kept) == 0
    return {"a": tmp_path / "a.hf.safetensors", "b": tmp_path / "b.hf.safetensors"}


@pytest.mark.parametrize("residue", NAMES)
@pytest.mark.parametrize("output", NAMES)
def test_only_the_pair_fits(pair: dict[str, Path], tmp_path: Path, capsys, output: str, residue: str) -> None:
    back = tmp_path / "back.safetensors"
    code = call(pair[output], back, "--to", "timm", "--restore", tmp_path / f"{residue}.kept")
    assert code == (0 if output == residue else 3)
    assert back.exists() == (code == 0)
    if code:
        assert "was kept from another file" in capsys.readouterr().err


def test_a_file_converted_without_a_residue(scaled: Path, pair, tmp_path: Path, capsys) -> None:
    out = tmp_path / "out.safetensors"
    assert call(scaled, out, "--to", "hf-vit", "--drop", "blocks.{i}.ls*") == 0
    assert call(out, tmp_path / "x.safetensors", "--to", "timm", "--restore", tmp_path / "a.kept") == 3
    assert "converted without a residue" in capsys.readouterr().err


def test_a_file_that_says_nothing_is_taken_on_trust_and_that_is_said(pair, tmp_path: Path, capsys) -> None:
    save_file(load_file(pair["a"]), tmp_path / "bare.safetensors", metadata={"format": "pt"})
    args = ("--to", "timm", "--restore", tmp_path / "a.kept")
    assert call(tmp_path / "bare.safetensors", tmp_path / "x.safetensors", *args) == 0
    assert "on trust" in capsys.readouterr().out


def test_the_owner_is_carried_through_a_further_conversion(pair, scaled: Path, tmp_path: Path) -> None:
    out, back = tmp_path / "tv.safetensors", tmp_path / "back.safetensors"
    assert call(pair["a"], out, "--to", "torchvision", *SETS) == 0
    assert call(out, back, "--to", "timm", "--restore", tmp_path / "b.kept", *SETS) == 3
    assert call(out, back, "--to", "timm", "--restore", tmp_path / "a.kept", *SETS) == 0
    with safe_open(back, "pt") as file:
        assert OWNER not in file.metadata()
    assert all(torch.equal(v, load_file(scaled)[k]) for k, v in load_file(back).items())
