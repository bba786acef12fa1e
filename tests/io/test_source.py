from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

from vitconv.errors import BadFile, UsageError
from vitconv.io.source import open_checkpoint
from vitconv.io.tensor import Blob, Stored, c_strides, is_contiguous, span

HEAVY = {"numpy", "torch", "zipfile", "pickle", "onnx", "safetensors", "hashlib", "click", "rich"}


@pytest.mark.parametrize("kind", ["import", "safetensors", "pth", "pth copy"])
def test_nothing_heavy_is_imported(tmp_path: Path, kind) -> None:
    path = tmp_path / "x"
    if kind == "safetensors":
        safetensors.torch.save_file({"w": torch.ones(2)}, path)
    elif kind != "import":
        torch.save({"w": torch.ones(2)}, path)
    code = f"""
import sys
import vitconv.io.envelope, vitconv.io.sink
from vitconv.io.sink import Out, write_file
from vitconv.io.source import open_checkpoint
if {kind != "import"}:
    with open_checkpoint({str(path)!r}) as ckpt:
        segments = [(s, ckpt.segment(s)) for s in ckpt.tensors]
        if {kind == "pth copy"}:
            outs = [Out(s.key, s.dtype, s.shape, lambda g=g: [g]) for s, g in segments]
            write_file({str(tmp_path / "y")!r}, outs, None)
print(*sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path.cwd())
    assert HEAVY & set(done.stdout.split()) == set()


def test_ranges_outside_a_tensor_are_an_error(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(2)}, tmp_path / "x")
    with open_checkpoint(tmp_path / "x") as ckpt:
        for start, stop in ((-1, 2), (0, 9), (5, 4)):
            with pytest.raises(UsageError, match="w: bytes"):
                ckpt.read_range(ckpt.tensors[0], start, stop)
        assert ckpt.read_range(ckpt.tensors[0], 8, 8) == b""


def test_closing_gives_the_files_back(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(2)}, tmp_path / "x")
    ckpt = open_checkpoint(tmp_path / "x")
    fd = ckpt.segment(ckpt.tensors[0]).fd  # type: ignore[union-attr]
    assert Path(f"/proc/self/fd/{fd}").exists()
    ckpt.close()
    ckpt.close()
    assert not Path(f"/proc/self/fd/{fd}").exists()


@pytest.mark.parametrize("kind", ["safetensors", "safetensors off the page", "pth", "small", "strided", "deflated"])
def test_pages_of_a_file_are_what_reading_it_gives(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "x"
    w = torch.randn(3 if kind == "small" else 300, 100)
    if kind == "deflated":
        np.savez_compressed(path.with_suffix(".npz"), w=w.numpy())
        path = path.with_suffix(".npz")
    elif kind in ("pth", "strided"):
        torch.save({"w": w.T if kind == "strided" else w}, path)
    else:
        safetensors.torch.save_file({"a": torch.randn(7 if "off" in kind else 1024), "w": w}, path)
    with open_checkpoint(path) as ckpt:
        stored = next(s for s in ckpt.tensors if s.key == "w")
        held = ckpt.mapped(stored)
        assert bytes(held) == bytes(ckpt.read(stored))
        before = path.read_bytes()
        if not held.readonly:
            held[0] = held[0] ^ 1
    # Writing stays in memory, and closing the file does not take the pages away.
    assert path.read_bytes() == before
    assert len(bytes(held)) == w.nbytes


def test_a_file_cut_short_after_it_was_opened_is_not_mapped(tmp_path: Path) -> None:
    safetensors.torch.save_file({"w": torch.randn(300, 100)}, tmp_path / "x")
    with open_checkpoint(tmp_path / "x") as ckpt:
        with (tmp_path / "x").open("r+b") as f:
            f.truncate((tmp_path / "x").stat().st_size - 12)
        with pytest.raises(BadFile, match="x: 'w': the file ends 12 bytes before"):
            ckpt.mapped(ckpt.tensors[0])


def test_ties_are_the_same_bytes_and_nothing_else(tmp_path: Path) -> None:
    base = torch.randn(4, 4)
    value = {
        "a": base,
        "b": base.reshape(16),
        "t": base.t(),
        "t2": base.t(),
        "half": base[:2],
        "e": base[:0],
        "e2": base[:0],
    }
    torch.save(value, tmp_path / "x")
    with open_checkpoint(tmp_path / "x") as ckpt:
        assert set(ckpt.ties) == {(("a",), ("b",)), (("t",), ("t2",))}


@pytest.mark.parametrize(
    ("shape", "strides", "contiguous", "reach"),
    [
        ((2, 3), (3, 1), True, 6),
        ((2, 3), (1, 2), False, 6),
        ((1, 3), (99, 1), True, 201 - 198),
        ((3, 1), (1, 99), True, 3),
        ((2, 3), (0, 1), False, 3),
        ((0, 3), (7, 7), True, 0),
        ((), (), True, 1),
        ((2, 2), (10, 3), False, 14),
    ],
)
def test_strides(shape, strides, contiguous, reach) -> None:
    stored = Stored(("c", "w"), "F32", shape, Blob(0, 0, 400), 0, strides)
    assert (stored.key, stored.itemsize, stored.contiguous) == ("w", 4, contiguous)
    assert is_contiguous(shape, strides) == contiguous
    assert span(shape, strides) == reach
    assert span(shape, None) == stored.numel == stored.nbytes // 4
    assert is_contiguous(shape, c_strides(shape))
