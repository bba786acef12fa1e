from __future__ import annotations

import errno
import json
import os
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from vitconv.errors import BadFile, LayoutError, Refused, UsageError
from vitconv.io import stream
from vitconv.io.leftovers import temporary_name
from vitconv.io.segment import Segment
from vitconv.io.sink import Out, file_order, header_bytes, write_file
from vitconv.io.source import open_checkpoint
from vitconv.io.threads import NAME

OLD = b"the old file"


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("held", [False, True], ids=["byte ranges", "buffers"])
@pytest.mark.parametrize("metadata", [None, {}, {"format": "pt"}, {"é\n": '"\\'}], ids=["none", "empty", "pt", "odd"])
def test_bit_identical_to_the_reference_writer(tmp_path: Path, state, source, metadata, held, outs_of) -> None:
    dense = {key: value.detach().contiguous().clone() for key, value in state.items()} | {"é\n": torch.ones(1)}
    safetensors.torch.save_file(dense, tmp_path / "theirs", metadata=metadata)
    outs = [*outs_of(source, held), Out("é\n", "F32", (1,), lambda: [torch.ones(1).numpy().tobytes()])]
    write_file(tmp_path / "ours", file_order(outs), metadata)
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()


def test_kept_order_and_alignment(tmp_path: Path, source, outs_of) -> None:
    outs = outs_of(source)
    write_file(tmp_path / "ours", outs, None)
    with open_checkpoint(tmp_path / "ours") as ckpt:
        names = [stored.key for stored in ckpt.tensors if stored.nbytes]
        assert names == [out.key for out in outs if out.nbytes]
    for align, residue in ((8, 0), (4096, 0), (4096, 1000), (64, 8)):
        header = header_bytes(outs, None, align=align, residue=residue)
        assert len(header) % align == residue
        assert json.loads(header[8:])
    with pytest.raises(LayoutError):
        header_bytes(outs, None, align=4096, residue=3)


def test_names_that_cannot_be_written(tmp_path: Path) -> None:
    out = Out("w", "F32", (1,), lambda: [bytes(4)])
    with pytest.raises(UsageError, match="names twice: w"):
        write_file(tmp_path / "x", [out, out], None)
    with pytest.raises(UsageError, match="Unicode"):
        write_file(tmp_path / "x", [Out("\ud800", "F32", (1,), lambda: [bytes(4)])], None)
    assert names_in(tmp_path) == set()


@pytest.mark.parametrize("size", [0, 3, 5])
def test_an_output_that_gives_the_wrong_number_of_bytes_leaves_nothing(tmp_path: Path, size) -> None:
    (tmp_path / "x").write_bytes(OLD)
    with pytest.raises(LayoutError, match=f"w was given {size} bytes, its header says 4"):
        write_file(tmp_path / "x", [Out("w", "F32", (1,), lambda: [bytes(size)])], None)
    assert (tmp_path / "x").read_bytes() == OLD
    assert names_in(tmp_path) == {"x"}


def test_mode_follows_the_umask(tmp_path: Path) -> None:
    for mask in (0o022, 0o077, 0o002):
        old = os.umask(mask)
        try:
            write_file(tmp_path / "x", [], None)
            assert stat.S_IMODE((tmp_path / "x").stat().st_mode) == 0o666 & ~mask
        finally:
            os.umask(old)


@pytest.mark.parametrize("link", ["same", "symlink", "hardlink"])
def test_output_that_is_the_input_is_refused(tmp_path: Path, source, link, outs_of) -> None:
    target = source.files[0]
    before = target.read_bytes()
    if link != "same":
        target = tmp_path / "other"
        target.symlink_to(source.files[0]) if link == "symlink" else target.hardlink_to(source.files[0])
    for options in ({}, {"inputs": source.files}, {"reflink_from": source}):
        with pytest.raises(Refused, match="is the input itself"):
            write_file(target, outs_of(source), None, **options)
    assert source.files[0].read_bytes() == before
    assert not any(".tmp-" in name for name in names_in(tmp_path))


def test_targets_that_are_no_place_for_a_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is a folder"):
        write_file(tmp_path, [], None)
    with pytest.raises(UsageError, match="no folder"):
        write_file(tmp_path / "missing" / "x", [], None)
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"no folder|cannot be written"):
        write_file(tmp_path / "file" / "x", [], None)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="not a plain file"):
        write_file(tmp_path / "pipe", [], None)
    with pytest.raises(UsageError, match="cannot be written"):
        write_file(tmp_path / ("x" * 300), [], None)
    write_file(tmp_path / ("x" * 255), [], None)


def test_a_symlink_is_replaced_and_what_it_pointed_to_is_kept(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(OLD)
    (tmp_path / "link").symlink_to("real")
    write_file(tmp_path / "link", [], None)
    assert (tmp_path / "real").read_bytes() == OLD
    assert not (tmp_path / "link").is_symlink()


@pytest.mark.parametrize(
    ("code", "error", "words"),
    [
        ("ENOSPC", Refused, "the disk is full"),
        ("EDQUOT", Refused, "quota"),
        ("EFBIG", Refused, "too large"),
        ("EROFS", UsageError, "no right to write"),
        ("EACCES", UsageError, "no right to write"),
        ("EIO", UsageError, "cannot be written"),
    ],
)
@pytest.mark.parametrize("call", ["open", "pwrite", "fsync", "replace"])
def test_errors_of_the_system_at_any_step(
    tmp_path: Path, source, monkeypatch, code, error, words, call, outs_of
) -> None:
    import errno

    (tmp_path / "x").write_bytes(OLD)
    outs = outs_of(source)
    fault = OSError(getattr(errno, code), os.strerror(getattr(errno, code)))

    def fail(*_: object, **__: object) -> None:
        raise fault

    monkeypatch.setattr(*((Path, call) if call == "replace" else (os, call)), fail)
    with pytest.raises(error, match=words):
        write_file(tmp_path / "x", outs, None)
    monkeypatch.undo()
    assert (tmp_path / "x").read_bytes() == OLD
    assert not any(".tmp-" in name for name in names_in(tmp_path))


def test_a_full_disk_is_seen_before_anything_is_written(tmp_path: Path, monkeypatch) -> None:
    real = os.statvfs(tmp_path)
    monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result((*real[:4], 1, *real[5:])))
    with pytest.raises(Refused, match=r"takes 8\.0 MiB, 0\.0 MiB are free"):
        write_file(tmp_path / "x", [Out("w", "F32", (2 << 20,), lambda: [bytes(8 << 20)])], None)
    assert names_in(tmp_path) == set()


def test_a_file_size_limit_is_an_error_not_a_crash(tmp_path: Path) -> None:
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "from vitconv.io.sink import Out, write_file\n"
        f"write_file({str(tmp_path / 'x')!r}, [Out('w', 'U8', (5000,), lambda: [bytes(5000)])], None)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path.cwd())
    assert "too large a file" in done.stderr
    assert names_in(tmp_path) == set()


def test_a_source_that_shrinks_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(bytes(1000))
    with (tmp_path / "data").open("rb") as file, pytest.raises(BadFile, match="8 bytes too early"):
        write_file(tmp_path / "x", [Out("w", "U8", (1008,), lambda: [Segment(file.fileno(), 0, 1008)])], None)
    assert names_in(tmp_path) == {"data"}


@pytest.mark.parametrize("piece", [1, 7, 1000, 1 << 20])
def test_the_size_of_the_buffer_changes_nothing(tmp_path: Path, source, monkeypatch, piece, outs_of) -> None:
    write_file(tmp_path / "a", outs_of(source), None)
    monkeypatch.setattr(stream, "PIECE", piece)
    write_file(tmp_path / "b", outs_of(source), None)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_writes_are_whole_and_aligned(tmp_path: Path, monkeypatch) -> None:
    write = os.pwrite
    calls: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: calls.append((at, len(data))) or write(fd, data, at))
    outs = [Out(f"w{i}", "U8", (99_999,), lambda: [bytes(99_999)]) for i in range(9)]
    write_file(tmp_path / "x", outs, None)
    calls.sort()
    assert {size for _, size in calls[:-1]} == {stream.WRITE}
    assert [at for at, _ in calls] == [n * stream.WRITE for n in range(len(calls))]
    assert sum(size for _, size in calls) == (tmp_path / "x").stat().st_size


def threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name == NAME]


@pytest.fixture
def several(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let several threads write files of any size, in small pieces."""
    monkeypatch.setattr("vitconv.io.threads.processors", lambda: 4)
    monkeypatch.setattr(stream, "THREADS", 4)
    monkeypatch.setattr(stream, "SMALL", 0)
    monkeypatch.setattr(stream, "PIECE", 1000)
    monkeypatch.setattr(stream, "WRITE", 300)


@pytest.mark.usefixtures("several")
def test_several_threads_write_the_same_bytes(tmp_path: Path, source, outs_of, monkeypatch) -> None:
    seen: list[tuple[int, int]] = []
    write_file(tmp_path / "a", outs_of(source), None, progress=lambda done, total: seen.append((done, total)))
    monkeypatch.setattr(stream, "SMALL", 1 << 40)
    write_file(tmp_path / "b", outs_of(source), None)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert seen[-1] == (seen[-1][1], (tmp_path / "a").stat().st_size)
    assert threads() == []


@pytest.mark.usefixtures("several")
def test_a_chunk_need_not_outlive_the_next_one(tmp_path: Path) -> None:
    def chunks() -> Any:
        buffer = bytearray(700)
        for i in range(50):
            buffer[:] = bytes([i]) * 700
            yield memoryview(buffer)

    write_file(tmp_path / "x", [Out("w", "U8", (35_000,), chunks)], None)
    assert (tmp_path / "x").read_bytes()[-35_000:] == b"".join(bytes([i]) * 700 for i in range(50))


@pytest.mark.usefixtures("several")
@pytest.mark.parametrize("at", [0, 5, 29], ids=["first", "middle", "last"])
def test_an_error_of_any_thread_is_told_and_nothing_is_left(tmp_path: Path, monkeypatch, at: int) -> None:
    write, calls = os.pwrite, iter(range(10**9))

    def full(fd: int, data: memoryview, position: int) -> int:
        if next(calls) >= at:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(fd, data, position)

    monkeypatch.setattr(os, "pwrite", full)
    outs = [Out(f"w{i}", "U8", (999,), lambda: [bytes(999)]) for i in range(9)]
    with pytest.raises(Refused, match="the disk is full"):
        write_file(tmp_path / "x", outs, None)
    assert names_in(tmp_path) == set()


@pytest.mark.usefixtures("several")
def test_an_error_of_the_source_stops_all_threads(tmp_path: Path) -> None:
    def chunks() -> list[bytes]:
        raise KeyboardInterrupt

    outs = [Out("a", "U8", (5000,), lambda: [bytes(5000)]), Out("b", "U8", (1,), chunks)]
    with pytest.raises(KeyboardInterrupt):
        write_file(tmp_path / "x", outs, None)
    assert names_in(tmp_path) == set()
    assert threads() == []


def test_short_reads_and_writes(tmp_path: Path, source, monkeypatch, outs_of) -> None:
    """The system may move fewer bytes than asked for; nothing may be lost or doubled."""
    write_file(tmp_path / "a", outs_of(source), None)
    write, preadv, pread = os.pwrite, os.preadv, os.pread
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: write(fd, data[: max(1, len(data) // 3)], at))
    monkeypatch.setattr(
        os, "preadv", lambda fd, buffers, at: preadv(fd, [buffers[0][: max(1, len(buffers[0]) // 2)]], at)
    )
    monkeypatch.setattr(os, "pread", lambda fd, size, at: pread(fd, max(1, size // 2), at))
    with open_checkpoint(source.files[0]) as again:
        write_file(tmp_path / "b", outs_of(again), None)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_progress_counts_to_the_size_of_the_file(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(stream, "STRIDE", 1000)
    monkeypatch.setattr(stream, "PIECE", 512)
    seen: list[tuple[int, int]] = []
    outs = [Out(f"w{i}", "U8", (700,), lambda: [bytes(700)]) for i in range(10)]
    write_file(tmp_path / "x", outs, None, progress=lambda done, total: seen.append((done, total)))
    size = (tmp_path / "x").stat().st_size
    assert seen[-1] == (size, size)
    assert seen == sorted(seen)
    assert len(seen) > 4


# What runs in the background of a shell starts with SIGINT ignored, and so do its children.
WRITER = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)
from vitconv.io.sink import Out, write_file, write_sharded
def slow():
    for i in range(20):
        print(i, flush=True)
        yield bytes([i]) * 5000
        time.sleep(0.01)
outs = [Out('w', 'U8', (100_000,), slow), Out('v', 'U8', (100_000,), slow)]
if sys.argv[1] == 'file':
    write_file(sys.argv[2], outs, None)
else:
    write_sharded(sys.argv[2], outs, None, 100_000)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT], ids=["kill", "interrupt"])
@pytest.mark.parametrize("kind", ["file", "folder"])
@pytest.mark.parametrize("after", [0, 10, 19])
def test_a_kill_leaves_the_old_file_or_none(tmp_path: Path, number, kind, after) -> None:
    target = tmp_path / "out"
    if kind == "file":
        target.write_bytes(OLD)
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, kind, str(target)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=Path.cwd(),
    ) as process:
        assert process.stdout
        for line in process.stdout:
            if int(line) == after:
                process.send_signal(number)
                break
        process.stdout.read()
    assert process.returncode != 0
    left = names_in(tmp_path)
    if kind == "file":
        assert target.read_bytes() == OLD
    else:
        assert not target.exists()
    hidden = {name for name in left if name.startswith(".out.tmp-")}
    assert left <= {"out"} | hidden
    assert bool(hidden) == (number == signal.SIGKILL)


def test_an_exception_anywhere_leaves_the_old_file(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(OLD)

    def broken() -> Any:
        yield bytes(2)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_file(tmp_path / "x", [Out("w", "F32", (1,), broken)], None)
    assert (tmp_path / "x").read_bytes() == OLD
    assert names_in(tmp_path) == {"x"}


def test_memory_stays_small_for_a_large_file(tmp_path: Path) -> None:
    """A copy of 96 MiB in a process of its own."""
    size = 96 << 20
    with (tmp_path / "big").open("wb") as file:
        file.truncate(size)
    code = f"""
import os, resource
from vitconv.io.leftovers import temporary_name
from vitconv.io.segment import Segment
from vitconv.io.sink import Out, write_file
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
fd = os.open({str(tmp_path / "big")!r}, os.O_RDONLY)
out = Out('w', 'U8', ({size},), lambda: [Segment(fd, 0, {size})])
write_file({str(tmp_path / "x")!r}, [out], None, durable=False)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path.cwd(), check=True)
    assert int(done.stdout) < 4 << 10


def test_the_temporary_name_is_hidden_and_fresh(tmp_path: Path) -> None:
    names = {temporary_name(tmp_path / "x.safetensors").name for _ in range(100)}
    assert len(names) == 100
    assert all(name.startswith(".x.safetensors.tmp-") for name in names)


@pytest.mark.skipif(sys.platform in ("win32", "darwin"), reason="names of files are text there")
def test_a_name_that_is_no_text_in_utf_8(tmp_path: Path) -> None:
    target = tmp_path / os.fsdecode(b"caf\xe9\xff.safetensors")
    write_file(target, [Out("w", "F32", (1,), lambda: [bytes(4)])], None)
    assert [path.name for path in tmp_path.iterdir()] == [target.name]
