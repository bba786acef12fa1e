from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from vitconv.errors import Ambiguous, BadFile, UsageError
from vitconv.io.source import open_checkpoint

INDEX = "model.safetensors.index.json"


@pytest.fixture
def tensors() -> dict[str, Any]:
    torch.manual_seed(1)
    return {f"w{i}": torch.randn(3, 4) for i in range(6)}


def shard(folder: Path, tensors: dict[str, Any], count: int = 3, kind: str = "safetensors") -> dict[str, str]:
    """Write shards and their index as transformers does, and return the weight map."""
    folder.mkdir(exist_ok=True)
    stem = "model" if kind == "safetensors" else "pytorch_model"
    weight_map: dict[str, str] = {}
    for k in range(count):
        name = f"{stem}-{k + 1:05d}-of-{count:05d}.{kind}"
        part = {key: value for i, (key, value) in enumerate(tensors.items()) if i % count == k}
        safetensors.torch.save_file(part, folder / name) if kind == "safetensors" else torch.save(part, folder / name)
        weight_map |= dict.fromkeys(part, name)
    write_index(folder / f"{stem}.{kind}.index.json", weight_map)
    return weight_map


def write_index(path: Path, weight_map: object) -> None:
    path.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map}))


@pytest.mark.parametrize("kind", ["safetensors", "bin"])
@pytest.mark.parametrize("by", ["folder", "index"])
def test_sharded(tmp_path: Path, tensors, assert_holds, kind, by) -> None:
    shard(tmp_path / "m", tensors, kind=kind)
    path = tmp_path / "m" if by == "folder" else next((tmp_path / "m").glob("*.index.json"))
    with open_checkpoint(path) as ckpt:
        assert ckpt.format == {"safetensors": "safetensors-sharded", "bin": "torch-zip"}[kind]
        assert len(ckpt.files) == 3
        assert_holds(ckpt, tensors)
        assert ckpt.notes == ()


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin", "open_clip_model.safetensors", "x.pth"])
def test_a_folder_with_one_file(tmp_path: Path, tensors, assert_holds, name) -> None:
    if name.endswith("safetensors"):
        safetensors.torch.save_file(tensors, tmp_path / name)
    else:
        torch.save(tensors, tmp_path / name)
    for other in ("config.json", "training_args.bin", "optimizer.pt", ".hidden.safetensors", "README.md"):
        (tmp_path / other).write_text("{}")
    with open_checkpoint(tmp_path) as ckpt:
        assert [path.name for path in ckpt.files] == [name]
        assert_holds(ckpt, tensors)


def test_safetensors_before_bin_and_it_is_said(tmp_path: Path, tensors) -> None:
    safetensors.torch.save_file(tensors, tmp_path / "model.safetensors")
    torch.save({"other": torch.ones(1)}, tmp_path / "pytorch_model.bin")
    with open_checkpoint(tmp_path) as ckpt:
        assert len(ckpt.tensors) == 6
        assert "pytorch_model.bin" in ckpt.notes[0]


def test_stale_index_is_refused_and_can_be_ignored(tmp_path: Path, tensors, assert_holds) -> None:
    """The index speaks of three files; two hold everything."""
    shard(tmp_path, tensors, 2)
    write_index(tmp_path / INDEX, {key: f"model-0000{1 + i % 3}-of-00003.safetensors" for i, key in enumerate(tensors)})
    with pytest.raises(BadFile, match=r"names 3 files, 3 are missing: 'model-00001-of-00003.*--ignore-index"):
        open_checkpoint(tmp_path)
    for path in (tmp_path, tmp_path / INDEX):
        with open_checkpoint(path, ignore_index=True) as ckpt:
            assert_holds(ckpt, tensors)
            assert any("index was ignored" in note for note in ckpt.notes)


@pytest.mark.parametrize("fault", ["a tensor that no file holds", "a tensor not listed", "in the wrong file"])
def test_index_that_does_not_fit_the_files(tmp_path: Path, tensors, fault) -> None:
    weight_map = shard(tmp_path, tensors)
    if fault == "a tensor that no file holds":
        weight_map["ghost"] = weight_map["w0"]
    elif fault == "a tensor not listed":
        del weight_map["w0"]
    else:
        weight_map["w0"] = weight_map["w1"]
    write_index(tmp_path / INDEX, weight_map)
    name = {"a tensor that no file holds": "ghost"}.get(fault, "w0")
    with pytest.raises(BadFile, match=f"does not fit its 3 files.*'{name}'"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("kind", ["safetensors", "bin"])
@pytest.mark.parametrize("fault", ["other data", "a name more", "a name less"])
def test_an_index_and_a_single_file_that_differ(tmp_path: Path, tensors, assert_holds, fault, kind) -> None:
    """transformers reads the single file, others the index: which one is meant is asked for."""
    shard(tmp_path, tensors, kind=kind)
    changed = {
        "other data": tensors | {"w0": -tensors["w0"]},
        "a name more": tensors | {"stray": torch.ones(1)},
        "a name less": {key: value for key, value in tensors.items() if key != "w0"},
    }[fault]
    single = tmp_path / ("model.safetensors" if kind == "safetensors" else "pytorch_model.bin")
    (safetensors.torch.save_file if kind == "safetensors" else torch.save)(changed, single)
    with pytest.raises(Ambiguous, match=f"two checkpoints.*{'other data' if fault == 'other data' else 'same names'}"):
        open_checkpoint(tmp_path)
    with open_checkpoint(next(tmp_path.glob("*.index.json"))) as ckpt:
        assert_holds(ckpt, tensors)
    with open_checkpoint(single) as ckpt:
        assert_holds(ckpt, changed)
    with open_checkpoint(tmp_path, ignore_index=True) as ckpt:
        assert_holds(ckpt, tensors)


@pytest.mark.parametrize("stray", ["the same", "another part"])
def test_a_stray_file_beside_shards_is_not_merged(tmp_path: Path, tensors, assert_holds, stray) -> None:
    shard(tmp_path, tensors)
    held = tensors if stray == "the same" else {"head": torch.ones(1)}
    safetensors.torch.save_file(held, tmp_path / "model.safetensors")
    for ignore in (False, True):
        with open_checkpoint(tmp_path, ignore_index=ignore) as ckpt:
            assert_holds(ckpt, tensors)
            assert any("'model.safetensors'" in note for note in ckpt.notes)


@pytest.mark.parametrize("same", [True, False], ids=["same bits", "other bits"])
@pytest.mark.parametrize("ignore", [False, True], ids=["by index", "index ignored"])
def test_a_tensor_in_two_files(tmp_path: Path, tensors, assert_holds, same, ignore) -> None:
    weight_map = shard(tmp_path, tensors, 2)
    second = tmp_path / weight_map["w1"]
    held = safetensors.torch.load_file(second)
    safetensors.torch.save_file(held | {"w0": tensors["w0"] if same else -tensors["w0"]}, second)
    if not same:
        with pytest.raises(BadFile, match="different data under the same names: 'w0'"):
            open_checkpoint(tmp_path, ignore_index=ignore)
        return
    with open_checkpoint(tmp_path, ignore_index=ignore) as ckpt:
        assert_holds(ckpt, tensors)
        assert any("'w0'" in note for note in ckpt.notes)
        kept = next(stored for stored in ckpt.tensors if stored.key == "w0")
        assert ckpt.files[kept.blob.file].name == weight_map["w0"]


@pytest.mark.parametrize(
    "name", ["../secret.safetensors", "/etc/passwd", "sub/x.safetensors", "..", "", "a\\b", "a\0b", "x" * 300, "C:x"]
)
def test_an_index_cannot_lead_outside_its_folder(tmp_path: Path, tensors, name) -> None:
    safetensors.torch.save_file(tensors, tmp_path / "secret.safetensors")
    (tmp_path / "m").mkdir()
    write_index(tmp_path / "m" / INDEX, dict.fromkeys(tensors, name))
    with pytest.raises(BadFile, match="outside its folder"):
        open_checkpoint(tmp_path / "m")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not valid JSON"),
        ("{", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ("[]", "no weight_map"),
        ('{"weight_map": []}', "no weight_map"),
        ('{"weight_map": {"w": 1}}', "no weight_map"),
        ('{"weight_map": {}}', "lists no tensor"),
        ('{"weight_map": {"w": "gone.safetensors"}}', "1 are missing: 'gone.safetensors'"),
    ],
)
def test_damaged_index(tmp_path: Path, text, words) -> None:
    (tmp_path / INDEX).write_text(text)
    with pytest.raises(BadFile, match=words):
        open_checkpoint(tmp_path)


def test_shards_without_an_index(tmp_path: Path, tensors, assert_holds) -> None:
    shard(tmp_path, tensors)
    (tmp_path / INDEX).unlink()
    with pytest.raises(BadFile, match="3 shards but no index"):
        open_checkpoint(tmp_path)
    with open_checkpoint(tmp_path, ignore_index=True) as ckpt:
        assert_holds(ckpt, tensors)


def test_folders_that_hold_no_checkpoint_or_several(tmp_path: Path, tensors) -> None:
    with pytest.raises(UsageError, match="holds no checkpoint; it holds nothing"):
        open_checkpoint(tmp_path)
    (tmp_path / "config.json").touch()
    with pytest.raises(UsageError, match=r"it holds 'config.json'"):
        open_checkpoint(tmp_path)
    for name in ("a.pth", "b.pth"):
        torch.save(tensors, tmp_path / name)
    with pytest.raises(UsageError, match=r"several checkpoints.*'a.pth', 'b.pth'"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["__0_0.distcp", ".metadata"], "the save did not finish"),
        (["zero_to_fp32.py", "latest"], "zero_to_fp32.py"),
        (["zero_pp_rank_0_mp_rank_00_optim_states.pt"], "zero_to_fp32.py"),
        (["checkpoint", "model.ckpt.index", "model.ckpt.data-00000-of-00001"], "TensorFlow"),
    ],
)
def test_folders_of_other_kinds(tmp_path: Path, names, words) -> None:
    for name in names:
        (tmp_path / name).touch()
    with pytest.raises(BadFile, match=words):
        open_checkpoint(tmp_path)


def test_files_of_different_kinds_are_no_checkpoint(tmp_path: Path, tensors) -> None:
    weight_map = shard(tmp_path, tensors)
    torch.save({"w1": tensors["w1"], "w4": tensors["w4"]}, tmp_path / weight_map["w1"])
    with pytest.raises(BadFile, match="different kinds: safetensors, torch-zip"):
        open_checkpoint(tmp_path)


def test_a_link_to_a_blob_is_read(tmp_path: Path, tensors, assert_holds) -> None:
    """The cache of huggingface_hub is made of links into another folder."""
    shard(tmp_path / "blobs", tensors)
    shutil.copytree(tmp_path / "blobs", tmp_path / "snapshot")
    for path in (tmp_path / "snapshot").iterdir():
        path.unlink()
        path.symlink_to(tmp_path / "blobs" / path.name)
    with open_checkpoint(tmp_path / "snapshot") as ckpt:
        assert_holds(ckpt, tensors)
