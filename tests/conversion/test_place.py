"""Where a conversion writes: outputs that would take each other's place, folders that hold something, a full disk."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from conversion_kit import timm_vit

from vitconv.cli.main import run
from vitconv.io import atomic

FACTS = ("heads=4", "norm_eps=1e-6", "final_norm_eps=1e-6", "activation=gelu", "pooling=token", "grid=4x4")
SETS = [word for fact in (*FACTS, "norm_placement=pre") for word in ("--set", fact)]
Save = Callable[..., Path]


@pytest.fixture
def plain(save: Save) -> Path:
    return save(timm_vit().state_dict())


@pytest.fixture
def scaled(save: Save) -> Path:
    return save(timm_vit(init_values=0.1).state_dict(), "scaled.safetensors")


def call(*words: object) -> int:
    return run(["convert", *map(str, words)])


@pytest.mark.parametrize("residue", ["out.safetensors", "sub/../out.safetensors", "config.json"])
def test_a_residue_cannot_take_the_place_of_an_output(scaled: Path, tmp_path: Path, capsys, residue: str) -> None:
    (tmp_path / "sub").mkdir()
    kept = tmp_path / residue
    assert call(scaled, tmp_path / "out.safetensors", "--to", "hf-vit", "--residue", kept, *SETS) == 2
    assert "is an output of this conversion" in capsys.readouterr().err
    assert not (tmp_path / "out.safetensors").exists()
    assert not kept.exists()


def test_a_residue_that_has_nothing_to_keep_is_said(plain: Path, tmp_path: Path, capsys) -> None:
    kept = tmp_path / "kept"
    assert call(plain, tmp_path / "out.safetensors", "--to", "xformers", "--residue", kept) == 0
    assert f"there was nothing to keep: {kept} is not written" in capsys.readouterr().out
    assert not kept.exists()


def test_what_is_put_back_is_said_and_comes_from_a_residue(scaled: Path, tmp_path: Path, capsys) -> None:
    kept, out, back = tmp_path / "kept", tmp_path / "out.safetensors", tmp_path / "back.safetensors"
    assert call(scaled, out, "--to", "hf-vit", "--residue", kept) == 0
    capsys.readouterr()
    assert call(out, back, "--to", "timm", "--restore", kept) == 0
    assert f"put back from {kept}: blocks.{{0..1}}.ls1, blocks.{{0..1}}.ls2" in capsys.readouterr().out
    assert run(["diff", str(scaled), str(back)]) == 0


def test_only_a_residue_is_put_back(scaled: Path, save: Save, tmp_path: Path, capsys) -> None:
    extra = save({"blocks.0.ls1": timm_vit().state_dict()["norm.weight"]}, "extra.safetensors")
    assert call(scaled, tmp_path / "out.safetensors", "--to", "timm", "--restore", extra) == 2
    assert "no file that --residue wrote" in capsys.readouterr().err


def test_shards_do_not_stay_beside_a_new_single_file(plain: Path, tmp_path: Path, capsys) -> None:
    folder = tmp_path / "out"
    assert call(plain, folder, "--to", "hf-vit", "--shard-size", "20KB", *SETS) == 0
    assert call(plain, folder, "--to", "hf-vit", *SETS) == 3
    assert "holds shards already" in capsys.readouterr().err
    assert not (folder / "model.safetensors").exists()


def test_the_same_folder_may_be_written_again(plain: Path, tmp_path: Path, capsys) -> None:
    for _ in range(2):
        assert call(plain, tmp_path / "out", "--to", "hf-vit", *SETS) == 0
    assert "replaced" not in capsys.readouterr().out


def test_a_configuration_that_is_replaced_or_left_in_a_folder_is_said(plain: Path, tmp_path: Path, capsys) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "config.json").write_text('{"of": "another"}')
    assert call(plain, folder, "--to", "hf-vit") == 0
    assert f"config.json was in {folder} before: see that it describes this network" in capsys.readouterr().out
    assert json.loads((folder / "config.json").read_text()) == {"of": "another"}
    assert call(plain, folder, "--to", "hf-vit", *SETS) == 0
    assert "config.json beside the output was another one and is replaced" in capsys.readouterr().out
    assert json.loads((folder / "config.json").read_text())["hidden_size"] == 32


def test_a_configuration_beside_a_single_file_is_left(plain: Path, tmp_path: Path, capsys) -> None:
    (tmp_path / "config.json").write_text('{"of": "another"}')
    assert call(plain, tmp_path / "out.safetensors", "--to", "hf-vit", *SETS) == 0
    assert "left as it is" in capsys.readouterr().out
    assert json.loads((tmp_path / "config.json").read_text()) == {"of": "another"}


def test_paths_are_named_as_they_were_given(plain: Path, tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert call(plain, "out.safetensors", "--to", "hf-vit", *SETS) == 0
    assert "out.safetensors, config.json\n" in capsys.readouterr().out


def test_no_room_leaves_nothing_behind(scaled: Path, tmp_path: Path, capsys, monkeypatch) -> None:
    there = {path.name for path in tmp_path.iterdir()}

    def full(folder: Path, nbytes: int) -> None:
        raise atomic.Refused(f"{folder}: no room")

    monkeypatch.setattr("vitconv.conversion.convert.check_space", full)
    words = ("--to", "hf-vit", "--residue", tmp_path / "kept", *SETS)
    assert call(scaled, tmp_path / "out", *words) == 3
    assert {path.name for path in tmp_path.iterdir()} == there


def test_a_failed_write_takes_its_new_folder_away(plain: Path, tmp_path: Path, monkeypatch) -> None:
    def broken(*args: object, **options: object) -> None:
        raise atomic.Refused("the disk is full")

    monkeypatch.setattr("vitconv.conversion.convert.write_file", broken)
    assert call(plain, tmp_path / "out", "--to", "hf-vit", *SETS) == 3
    assert not (tmp_path / "out").exists()
    (tmp_path / "old").mkdir()
    assert call(plain, tmp_path / "old", "--to", "hf-vit", *SETS) == 3
    assert (tmp_path / "old").is_dir()


def test_a_size_beyond_every_disk_is_refused_before_it_is_made(plain: Path, tmp_path: Path, capsys) -> None:
    words = ("--to", "hf-vit", "--edit", "change-classes:classes=99999999999,how=zeros", *SETS)
    assert call(plain, tmp_path / "out.safetensors", *words) == 3
    assert "nothing was written" in capsys.readouterr().err


def test_an_empty_shard_size_is_wrong_usage(plain: Path, tmp_path: Path) -> None:
    assert call(plain, tmp_path / "out", "--to", "hf-vit", "--shard-size", "") == 2
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["out.h5", "out.keras", "out.safetensor", "model.msgpack", "out.pth", "out.gguf"])
def test_a_form_that_is_not_written_is_no_folder(plain: Path, tmp_path: Path, capsys, name: str) -> None:
    assert call(plain, tmp_path / name, "--to", "hf-vit", *SETS) == 2
    assert "a .safetensors file, or a folder" in capsys.readouterr().err
    assert not (tmp_path / name).exists()
    (tmp_path / name).mkdir()
    assert call(plain, tmp_path / name, "--to", "hf-vit", *SETS) == 0
    assert (tmp_path / name / "model.safetensors").exists()


@pytest.mark.parametrize("name", ["vit-2.1", "dinov2.v1_5b", "step.100", "out"])
def test_a_folder_may_have_a_dot(plain: Path, tmp_path: Path, name: str) -> None:
    assert call(plain, tmp_path / name, "--to", "hf-vit", *SETS) == 0
    assert (tmp_path / name / "model.safetensors").exists()


def test_what_a_killed_run_left_is_removed_and_said(plain: Path, tmp_path: Path, capsys) -> None:
    import os
    import subprocess
    import sys

    from vitconv.io.leftovers import temporary_name

    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    out = tmp_path / "out.safetensors"
    left = temporary_name(out).name.replace(f"-{os.getpid()}-", f"-{process.pid}-")
    (tmp_path / left).write_bytes(b"half")
    assert call(plain, out, "--to", "hf-vit", *SETS) == 0
    assert left in capsys.readouterr().out
    assert not (tmp_path / left).exists()


@pytest.mark.parametrize("name", ["", "other.safetensors"], ids=["the folder", "a file in it"])
def test_a_folder_that_is_read_takes_no_output(plain: Path, tmp_path: Path, capsys, name: str) -> None:
    folder = tmp_path / "in"
    assert call(plain, folder, "--to", "timm", *SETS) == 0
    before = {f.name: f.read_bytes() for f in folder.iterdir()}
    (folder / "model.safetensors").rename(folder / "pytorch_model.safetensors")
    assert call(folder, folder / name, "--to", "hf-vit") == 3
    assert "the input's own folder" in capsys.readouterr().err
    (folder / "pytorch_model.safetensors").rename(folder / "model.safetensors")
    assert {f.name: f.read_bytes() for f in folder.iterdir()} == before


def test_the_configuration_of_the_input_is_not_replaced(plain: Path, tmp_path: Path, capsys) -> None:
    folder = tmp_path / "in"
    assert call(plain, folder, "--to", "timm", *SETS) == 0
    source = (folder / "model.safetensors").rename(folder / "weights.safetensors")
    before = (folder / "config.json").read_bytes()
    assert call(source, folder, "--to", "hf-vit") == 3
    assert "whose configuration (config.json)" in capsys.readouterr().err
    assert (folder / "config.json").read_bytes() == before
    assert not (folder / "model.safetensors").exists()
    assert call(source, folder / "hf.safetensors", "--to", "hf-vit") == 0


def test_a_bare_file_may_be_written_beside(scaled: Path) -> None:
    assert call(scaled, scaled.parent, "--to", "timm") == 0
