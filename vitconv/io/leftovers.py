"""Temporary files that a killed run left behind: known by their names, and removed by the next write in the folder.

Such a name is `.TARGET.tmp-MACHINE-PID-RANDOM`. Only those of this machine are touched, and only when no process of
that number lives: on a shared disk another machine may be writing.
"""

from __future__ import annotations

import contextlib
import os
from functools import lru_cache
from pathlib import Path

_NAME = r"\..+\.tmp-([0-9a-f]{8})-(\d{1,18})-[0-9a-f]{8}"


def temporary_name(target: Path) -> Path:
    """Return a fresh name beside `target`, hidden, and short enough for any file system."""
    # Not every name of a file is text in UTF-8.
    name = target.name.encode(errors="surrogateescape")[:180].decode(errors="ignore")
    return target.with_name(f".{name}.tmp-{_machine()}-{os.getpid()}-{os.urandom(4).hex()}")


def sweep(folder: Path) -> tuple[str, ...]:
    """Remove what killed runs of this machine left in `folder`, and return the names removed, sorted."""
    try:
        found = [entry for entry in os.scandir(folder) if ".tmp-" in entry.name]
    except OSError:
        return ()
    if not found:
        return ()
    import re
    import shutil

    removed: list[str] = []
    for entry in found:
        match = re.fullmatch(_NAME, entry.name)
        if match is None or match[1] != _machine() or _lives(int(match[2])):
            continue
        with contextlib.suppress(OSError):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path)
            else:
                Path(entry.path).unlink()
            removed.append(entry.name)
    return tuple(sorted(removed))


def sweep_line(folder: Path) -> list[str]:
    """Sweep a folder, and return what is to be said of it: one line, or none."""
    removed = sweep(folder)
    if not removed:
        return []
    return [f"removed from {folder}: {len(removed)} unfinished outputs of killed runs ({', '.join(removed[:4])})"]


@lru_cache(maxsize=1)
def _machine() -> str:
    """Return eight digits that stand for this machine, as far as process numbers are its own."""
    import zlib

    text = os.uname().nodename if hasattr(os, "uname") else os.environ.get("COMPUTERNAME", "")
    with contextlib.suppress(OSError):
        # Containers of one name on one machine count their processes apart.
        text += str(Path("/proc/self/ns/pid").readlink())
    return f"{zlib.crc32(text.encode(errors='surrogateescape')):08x}"


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True
    return True
