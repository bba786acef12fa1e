"""What a killed run left in a folder goes at the next write, and nothing else does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from vitconv.io import leftovers
from vitconv.io.leftovers import sweep, sweep_line, temporary_name


def dead_name(target: Path) -> Path:
    """Return a temporary name of a process that has ended."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    name = temporary_name(target).name
    return target.with_name(name.replace(f"-{os.getpid()}-", f"-{process.pid}-"))


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_dead_process_s_output_is_removed_and_said(tmp_path: Path, kind: str) -> None:
    left = dead_name(tmp_path / "out.safetensors")
    if kind == "file":
        left.write_bytes(b"half")
    else:
        left.mkdir()
        (left / "model-00001-of-00002.safetensors").write_bytes(b"half")
    (tmp_path / "other").write_bytes(b"")
    (line,) = sweep_line(tmp_path)
    assert left.name in line
    assert [p.name for p in tmp_path.iterdir()] == ["other"]
    assert sweep_line(tmp_path) == []


def test_what_lives_or_is_another_s_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dead = dead_name(tmp_path / "a")
    names = {
        temporary_name(tmp_path / "mine").name,
        dead.name.replace(f".tmp-{leftovers._machine()}", ".tmp-00000000"),
        ".a.tmp-notes",
        "a.tmp-file",
        dead.name[1:],
        f"{dead.name}.txt",
    }
    for name in names:
        (tmp_path / name).write_bytes(b"")
    assert sweep(tmp_path) == ()
    assert {p.name for p in tmp_path.iterdir()} == names
    # Planted: a machine that takes every number for a dead process would remove the living one's.
    monkeypatch.setattr(leftovers, "_lives", lambda pid: False)
    assert len(sweep(tmp_path)) == 1


def test_a_process_of_another_user_counts_as_alive() -> None:
    assert leftovers._lives(1)
    assert not leftovers._lives(1 << 60)


def test_a_folder_that_is_not_there() -> None:
    assert sweep(Path("no such folder")) == ()
