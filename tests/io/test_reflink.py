from __future__ import annotations

import os
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from vitconv.io import reflink
from vitconv.io.segment import Segment
from vitconv.io.sink import Out, write_file
from vitconv.io.source import Checkpoint, open_checkpoint

BLOCK = reflink.BLOCK


def split(ckpt: Checkpoint, only: int | None = None) -> list[Out]:
    """Return outputs in the order of the file that cut every tensor in two along its first axis."""
    outs = []
    for stored in ckpt.tensors[:only]:
        segment = ckpt.segment(stored)
        assert segment is not None
        half = segment.nbytes // 2
        shape = (stored.shape[0] // 2, *stored.shape[1:])
        for part, start in (("a", 0), ("b", half)):
            piece = Segment(segment.fd, segment.offset + start, half)
            outs.append(Out(f"{stored.key}.{part}", stored.dtype, shape, lambda piece=piece: [piece]))
    return outs


@pytest.fixture
def source(tmp_path: Path) -> Any:
    torch.manual_seed(0)
    tensors = {f"w{i}": torch.randn(6, 700 + i) for i in range(4)}
    safetensors.torch.save_file(tensors, tmp_path / "source.safetensors")
    with open_checkpoint(tmp_path / "source.safetensors") as ckpt:
        yield ckpt


class Clones:
    """Do what FICLONERANGE promises, with its rules on alignment, on any file system."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, int, int]] = []

    def __call__(self, fd: int, code: int, request: bytes) -> None:
        assert code == 0x4020940D
        source, offset, length, target = struct.unpack("=qQQQ", request)
        size = os.fstat(source).st_size
        assert offset % BLOCK == target % BLOCK == 0
        assert length % BLOCK == 0
        assert offset + length <= size
        data = os.pread(source, length or size - offset, offset)
        os.pwrite(fd, data, target)
        self.calls.append((offset, length, target))


@pytest.mark.parametrize("only", [None, 3], ids=["to the end of the source", "a part of the source"])
def test_shared_and_copied_files_are_the_same(tmp_path: Path, source, monkeypatch, only) -> None:
    import fcntl

    outs = split(source, only)
    write_file(tmp_path / "copied", outs, {"a": "b"}, reflink_from=source)
    clones = Clones()
    monkeypatch.setattr(fcntl, "ioctl", clones)
    seen: list[tuple[int, int]] = []
    write_file(
        tmp_path / "shared",
        outs,
        {"a": "b"},
        reflink_from=source,
        progress=lambda done, total: seen.append((done, total)),
    )
    assert len(clones.calls) == 1
    assert (clones.calls[0][1] == 0) == (only is None)
    assert (tmp_path / "shared").read_bytes() == (tmp_path / "copied").read_bytes()
    size = (tmp_path / "shared").stat().st_size
    assert seen == [(size, size)]
    with open_checkpoint(tmp_path / "shared") as ckpt:
        assert ckpt.metadata == {"a": "b"}
        held = {stored.key: bytes(ckpt.read(stored)) for stored in ckpt.tensors}
        for stored in source.tensors[:only]:
            assert held[f"{stored.key}.a"] + held[f"{stored.key}.b"] == bytes(source.read(stored))
        assert ckpt.tensors[0].blob.offset % BLOCK == source.tensors[0].blob.offset % BLOCK
    assert set(safetensors.torch.load_file(tmp_path / "shared")) == {out.key for out in outs}


def test_data_that_are_not_one_range_are_copied(tmp_path: Path, source, monkeypatch) -> None:
    import fcntl

    clones = Clones()
    monkeypatch.setattr(fcntl, "ioctl", clones)
    outs = split(source)[::-1]
    write_file(tmp_path / "a", outs, None, reflink_from=source)
    write_file(tmp_path / "b", outs, None)
    assert clones.calls == []
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_source_that_is_not_aligned_to_8_is_copied(tmp_path: Path, monkeypatch) -> None:
    import fcntl

    clones = Clones()
    monkeypatch.setattr(fcntl, "ioctl", clones)
    (tmp_path / "data").write_bytes(bytes(range(256)) * 64)
    with (tmp_path / "data").open("rb") as file:

        class Held:
            files = (tmp_path / "data",)

        outs = [Out("w", "U8", (9000,), lambda: [Segment(file.fileno(), 3, 9000)])]
        write_file(tmp_path / "x", outs, None, reflink_from=Held())
    assert clones.calls == []
    assert (tmp_path / "x").read_bytes()[-9000:] == (tmp_path / "data").read_bytes()[3:9003]


@pytest.mark.optin
@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
@pytest.mark.parametrize("kind", ["xfs", "btrfs"])
def test_on_a_file_system_that_can(tmp_path: Path, source, kind) -> None:
    if shutil.which(f"mkfs.{kind}") is None:
        pytest.skip(f"no mkfs.{kind}")
    image, folder = tmp_path / "image", tmp_path / "mounted"
    with image.open("wb") as file:
        file.truncate(512 << 20)
    folder.mkdir()
    subprocess.run([f"mkfs.{kind}", "-q", str(image)], check=True)
    subprocess.run(["mount", "-o", "loop", str(image), str(folder)], check=True)
    try:
        shutil.copy(source.files[0], folder / "source.safetensors")
        with open_checkpoint(folder / "source.safetensors") as there:
            outs = split(there)
            segment = there.segment(there.tensors[0])
            assert segment is not None
            probe = os.open(folder / "probe", os.O_RDWR | os.O_CREAT)
            whole = Segment(segment.fd, segment.offset, (folder / "source.safetensors").stat().st_size - segment.offset)
            assert reflink.clone(probe, segment.offset % BLOCK, whole)
            os.close(probe)
            write_file(folder / "shared", outs, None, reflink_from=there)
            write_file(tmp_path / "copied", outs, None, reflink_from=there)
            assert (folder / "shared").read_bytes() == (tmp_path / "copied").read_bytes()
    finally:
        subprocess.run(["umount", str(folder)], check=True)
