from __future__ import annotations

import json
from pathlib import Path

import pytest
import safetensors.torch
import torch

from vitconv.errors import LayoutError, Refused, UsageError
from vitconv.io.sink import Out, write_sharded
from vitconv.io.source import open_checkpoint

OLD = b"the old file"


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_transformers_layout(tmp_path: Path, state, source, assert_holds, outs_of) -> None:
    written = write_sharded(tmp_path / "out", outs_of(source), {"format": "pt"}, 300)
    names = [path.name for path in written]
    count = len(names) - 1
    assert count > 2
    assert names == [f"model-{k:05d}-of-{count:05d}.safetensors" for k in range(1, count + 1)] + [
        "model.safetensors.index.json"
    ]
    index = json.loads((tmp_path / "out" / names[-1]).read_text())
    assert index["metadata"]["total_size"] == sum(stored.nbytes for stored in source.tensors)
    merged: dict[str, torch.Tensor] = {}
    for name in names[:-1]:
        shard = safetensors.torch.load_file(tmp_path / "out" / name)
        assert {key for key, where in index["weight_map"].items() if where == name} == set(shard)
        assert len(shard) == 1 or sum(value.nbytes for value in shard.values()) <= 300
        merged |= shard
    assert {key: value.tolist() for key, value in merged.items() if value.dtype == torch.float32} == {
        key: value.tolist() for key, value in state.items() if value.dtype == torch.float32
    }
    with open_checkpoint(tmp_path / "out") as ckpt:
        assert ckpt.format == "safetensors-sharded"
        assert ckpt.metadata == {"format": "pt"}
        assert_holds(ckpt, state)


def test_one_shard_is_a_plain_file(tmp_path: Path, source, outs_of) -> None:
    assert [path.name for path in write_sharded(tmp_path / "out", outs_of(source), None, 1 << 30)] == [
        "model.safetensors"
    ]


def test_same_sharing_out_as_huggingface_hub(tmp_path: Path, state, source, outs_of) -> None:
    from huggingface_hub import split_torch_state_dict_into_shards

    dense = {out.key: state[out.key].detach().contiguous().clone() for out in outs_of(source)}
    for size in (100, 300, 1000):
        plan = split_torch_state_dict_into_shards(dense, max_shard_size=size)
        write_sharded(tmp_path / f"{size}", outs_of(source), None, size)
        index = json.loads((tmp_path / f"{size}" / "model.safetensors.index.json").read_text())
        assert index["weight_map"] == plan.tensor_to_filename


def test_other_files_in_the_folder_stay(tmp_path: Path, source, assert_holds, state, outs_of) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "config.json").write_bytes(OLD)
    write_sharded(out, outs_of(source), None, 300)
    assert (out / "config.json").read_bytes() == OLD
    assert not any(name.startswith(".") for name in names_in(out))
    with open_checkpoint(out) as ckpt:
        assert_holds(ckpt, state)


@pytest.mark.parametrize("name", ["model.safetensors", "model.safetensors.index.json", "pytorch_model.bin"])
def test_a_folder_with_weights_is_refused_untouched(tmp_path: Path, source, name, outs_of) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / name).write_bytes(OLD)
    with pytest.raises(Refused, match=f"holds weights already.*{name}"):
        write_sharded(out, outs_of(source), None, 300)
    assert names_in(out) == {name}


@pytest.mark.parametrize("exists", [False, True], ids=["new", "existing"])
@pytest.mark.parametrize("fails_at", range(6))
def test_a_failing_rename_leaves_the_folder_as_it_was(
    tmp_path: Path, source, monkeypatch, exists, fails_at, outs_of
) -> None:
    out = tmp_path / "out"
    if exists:
        out.mkdir()
        (out / "config.json").write_bytes(OLD)
    before = names_in(out) if exists else set()
    rename = Path.rename
    calls: list[Path] = []

    def fail(path: Path, target: Path) -> Path:
        calls.append(path)
        if len(calls) > (fails_at if exists else 0):
            raise OSError(28, "No space left on device")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(Refused, match=r"out: the disk is full"):
        write_sharded(out, outs_of(source), None, 300)
    assert (names_in(out) if exists else set()) == before
    assert names_in(tmp_path) == {"source.pth"} | ({"out"} if exists else set())


def test_errors_name_the_target_not_the_temporary_folder(tmp_path: Path) -> None:
    outs = [Out(f"w{i}", "F32", (1,), lambda: [bytes(3)]) for i in range(2)]
    with pytest.raises(LayoutError):
        write_sharded(tmp_path / "out", outs, None, 4)
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="is a file; shards need a folder"):
        write_sharded(tmp_path / "file", outs, None, 4)
    with pytest.raises(UsageError, match="no folder"):
        write_sharded(tmp_path / "missing" / "out", outs, None, 4)
    with pytest.raises(UsageError, match="0 bytes"):
        write_sharded(tmp_path / "out", outs, None, 0)
    assert names_in(tmp_path) == {"file"}


def test_the_folder_of_the_input_is_refused(tmp_path: Path, source, outs_of) -> None:
    with pytest.raises(Refused, match="is the input itself"):
        write_sharded(tmp_path, outs_of(source), None, 300, inputs=source.files)
