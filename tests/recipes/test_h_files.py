"""H: dtypes, shared storages, safety, shards."""

from __future__ import annotations

import argparse
import collections
import json
import pathlib
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kit import bits, equal, rand_t, save, tensors, vitconv


def to_timm(source: Path, *more: object):
    out = source.parent / "out.safetensors"
    answer = vitconv("convert", source, out, "--to", "timm", "--prove", *more)
    return answer, tensors(out) if out.exists() else None


def test_h01_one_tensor_under_two_names(tmp_path: Path) -> None:
    state = rand_t()
    state["norm.bias"] = state["patch_embed.proj.bias"]
    answer, written = to_timm(save(tmp_path / "s.pth", state))
    assert answer.code == 0, answer.text
    assert equal(written, state)
    assert "patch_embed.proj.bias" in vitconv("inspect", tmp_path / "s.pth").out


def test_h02_all_tensors_cut_from_one_buffer(tmp_path: Path) -> None:
    state = rand_t()
    buffer = torch.cat([v.reshape(-1) for v in state.values()])
    at, views = 0, {}
    for key, value in state.items():
        views[key] = buffer[at : at + value.numel()].view(value.shape)
        at += value.numel()
    answer, written = to_timm(save(tmp_path / "s.pth", views))
    assert answer.code == 0, answer.text
    assert equal(written, state)


def test_h04_channels_last(tmp_path: Path) -> None:
    state = rand_t()
    key = "patch_embed.proj.weight"
    strided = {**state, key: state[key].to(memory_format=torch.channels_last)}
    assert not strided[key].is_contiguous()
    answer, written = to_timm(save(tmp_path / "s.pth", strided))
    assert answer.code == 0, answer.text
    assert equal(written, state)


def test_h05_transposed_views(tmp_path: Path) -> None:
    state = rand_t()
    strided = {k: v.t().contiguous().t() if v.ndim == 2 else v for k, v in state.items()}
    answer, written = to_timm(save(tmp_path / "s.pth", strided))
    assert answer.code == 0, answer.text
    assert equal(written, state)


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_h07_h26_every_tensor_keeps_its_dtype(suffix: str, tmp_path: Path) -> None:
    state = {k: v.half() for k, v in rand_t().items()}
    state["norm.weight"] = state["norm.weight"].float()
    answer, written = to_timm(save(tmp_path / f"s{suffix}", state))
    assert answer.code == 0, answer.text
    assert equal(written, state)
    assert "F16" in vitconv("inspect", tmp_path / f"s{suffix}").out


def test_h08_a_cast_is_asked_for_counted_and_refused_when_it_overflows(tmp_path: Path) -> None:
    state = rand_t()
    state["head.weight"] = state["head.weight"] * 1e6
    state["blocks.0.mlp.fc1.weight"] = state["blocks.0.mlp.fc1.weight"] * 1e-9
    source = save(tmp_path / "s.safetensors", state)
    answer, written = to_timm(source, "--dtype", "F16")
    assert answer.code == 3
    assert "head.weight" in answer.err
    assert written is None
    answer, written = to_timm(source, "--dtype", "BF16")
    assert answer.code == 0, answer.text
    assert all(bits(written[k]) == bits(v.bfloat16()) for k, v in state.items())
    (tmp_path / "out.safetensors").unlink()
    answer, written = to_timm(source, "--edit", "cast:dtype=F16,overflow=inf")
    assert answer.code == 0, answer.text
    assert "blocks.0.mlp.up.weight" in answer.out
    assert equal(written, {k: v.half() for k, v in state.items()})


FOREIGN: dict[str, Any] = {
    "namespace": argparse.Namespace(lr=0.1),
    "numpy scalar": np.float32(3.0),
    "numpy array": np.arange(3),
    "defaultdict": collections.defaultdict(list, a=[1]),
    "path": pathlib.PurePosixPath("/x"),
    "module": torch.nn.Linear(2, 2),
}


@pytest.mark.parametrize("thing", FOREIGN.values(), ids=FOREIGN)
@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
def test_h09_to_h12_foreign_objects_are_listed_and_not_made(thing: Any, zipped: bool, tmp_path: Path) -> None:
    source = tmp_path / "s.pth"
    torch.save({"model": rand_t(), "args": thing}, source, _use_new_zipfile_serialization=zipped)
    answer, written = to_timm(source)
    assert answer.code == 0, answer.text
    assert equal(written, rand_t())


class Payload:
    """Makes a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        import os

        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize("place", ["args", "list", "key beside"])
def test_h13_a_payload_never_runs(zipped: bool, place: str, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    load = Payload(marker)
    contents: dict[str, Any] = {
        "args": {"model": rand_t(), "args": load},
        "list": {"model": rand_t(), "extra": [1, [2, [load]]]},
        "key beside": {**rand_t(), "extra": load},
    }[place]
    source = tmp_path / "s.pth"
    torch.save(contents, source, _use_new_zipfile_serialization=zipped)
    with pytest.raises(pickle.UnpicklingError):
        torch.load(source, weights_only=True)
    answer, written = to_timm(source)
    assert answer.code == 3
    assert "mkdir" in answer.err
    assert not marker.exists()
    assert written is None


def test_h14_there_is_no_unsafe_switch() -> None:
    for verb in ("convert", "inspect", "diff", "show"):
        assert "unsafe" not in vitconv(verb, "--help").out.lower()


def sharded(folder: Path) -> Path:
    """Write rand(T) as three shards with an index."""
    answer = vitconv(
        "convert", save(folder / "t.safetensors", rand_t()), folder / "s", "--to", "timm", "--shard-size", "70KB"
    )
    assert answer.code == 0, answer.text
    return folder / "s"


def test_shards_are_written_and_read(tmp_path: Path) -> None:
    folder = sharded(tmp_path)
    assert len(list(folder.glob("model-*.safetensors"))) >= 2
    answer, written = to_timm(folder, "--plain")
    assert answer.code == 0, answer.text
    assert equal(tensors(folder / "out.safetensors") if written is None else written, rand_t())


def test_h16_an_index_that_names_what_is_not_there(tmp_path: Path) -> None:
    folder = sharded(tmp_path)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    key = next(iter(index["weight_map"]))
    index["weight_map"][key] = "model-00009-of-00009.safetensors"
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    out = tmp_path / "o.safetensors"
    answer = vitconv("convert", folder, out, "--to", "timm")
    assert answer.code == 3
    assert "model-00009-of-00009.safetensors" in answer.err
    assert not out.exists()
    answer = vitconv("convert", folder, out, "--to", "timm", "--ignore-index", "--plain")
    assert answer.code == 0, answer.text
    assert equal(tensors(out), rand_t())


def test_h17_a_stray_file_beside_the_shards(tmp_path: Path) -> None:
    folder = sharded(tmp_path)
    save(folder / "model.safetensors", rand_t(seed=5))
    out = tmp_path / "o.safetensors"
    answer = vitconv("convert", folder, out, "--to", "timm", "--plain")
    assert answer.code in (0, 3), answer.text
    if answer.code == 0:
        assert equal(tensors(out), rand_t())
    else:
        assert "model.safetensors" in answer.err


@pytest.mark.parametrize("shape", [(0,), (1,)])
def test_h19_placeholders_of_zero_stage_three(shape: tuple[int, ...], tmp_path: Path) -> None:
    state = {k: torch.zeros(shape) if j % 2 else v for j, (k, v) in enumerate(rand_t().items())}
    answer, written = to_timm(save(tmp_path / "s.pth", {"module": state}))
    assert answer.code == 3
    assert "gather" in answer.err
    assert written is None


def test_h28_bare_weights_are_said_to_be_no_more(tmp_path: Path) -> None:
    opt = torch.optim.AdamW([torch.nn.Parameter(torch.ones(3))])
    opt.param_groups[0]["params"][0].grad = torch.ones(3)
    opt.step()
    full = save(tmp_path / "full.pth", {"model": rand_t(), "optimizer": opt.state_dict(), "epoch": 3})
    assert "optimizer" in vitconv("inspect", full).out
    assert "optimizer" not in vitconv("inspect", save(tmp_path / "bare.pth", rand_t())).out
