"""Put a file in place whole or not at all: a temporary file in the target folder, fsync, rename."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from vitconv.errors import Refused, UsageError, VitconvError
from vitconv.io.leftovers import temporary_name

_FULL = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "it is too large a file",
}
_DENIED = {errno.EACCES, errno.EPERM, errno.EROFS}


def explain(error: OSError, target: Path) -> VitconvError:
    """Turn an error of the system while writing `target` into one that says what to do."""
    reason = error.strerror or str(error)
    code = error.errno
    if code in _FULL:
        return Refused(f"{target}: {_FULL[code]}; nothing was written. Free some space or choose another folder")
    if code in _DENIED:
        return UsageError(f"{target}: no right to write into {target.parent} ({reason}); nothing was written")
    if code in (errno.ENOENT, errno.ENOTDIR):
        return UsageError(f"{target}: there is no folder {target.parent}; make it first")
    return UsageError(f"{target}: cannot be written ({reason})")


def check_target(target: Path, inputs: Iterable[Path] = ()) -> None:
    """Refuse a target that is a folder, a device, or one of the inputs (also through a link).

    Raises:
        UsageError: it is no place for a file.
        Refused: it is a file that is being read.
    """
    try:
        found = target.stat()
    except FileNotFoundError:
        return
    except OSError as error:
        raise explain(error, target) from error
    if stat.S_ISDIR(found.st_mode):
        raise UsageError(f"{target} is a folder; name a file in it")
    if not stat.S_ISREG(found.st_mode):
        raise UsageError(f"{target} is not a plain file; it will not be replaced")
    for path in inputs:
        with contextlib.suppress(OSError):
            if os.path.samestat(found, path.stat()):
                raise same_file(target)


def same_file(target: Path) -> Refused:
    """Return the error for an output that is the input."""
    return Refused(f"{target} is the input itself; write to another name, then rename it yourself")


def check_space(folder: Path, nbytes: int) -> None:
    """Refuse early when the file system says that it has no room; one that says nothing is tried.

    Raises:
        Refused: fewer than `nbytes` bytes are free.
    """
    try:
        found = os.statvfs(folder)
    except (OSError, AttributeError):
        return
    free = found.f_bavail * found.f_frsize
    if found.f_blocks and nbytes > free:
        raise Refused(
            f"{folder}: the output takes {nbytes / 2**20:.1f} MiB, {free / 2**20:.1f} MiB are free; nothing was written"
        )


@contextlib.contextmanager
def replacing(target: Path, *, durable: bool = True) -> Iterator[int]:
    """Open a temporary file beside `target`, and let it take that name when the block ends well.

    The mode is 0666 less the umask. A kill at any moment leaves the old file, or none, under the name. With
    `durable` the same holds for a power cut after the return: the file and its folder are synced.

    Raises:
        UsageError, Refused: the system will not write there, or has no room.
    """
    temporary = temporary_name(target)
    try:
        fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o666)
    except OSError as error:
        raise explain(error, target) from error
    try:
        try:
            yield fd
            if durable:
                os.fsync(fd)
        finally:
            os.close(fd)
        temporary.replace(target)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError):
            raise explain(error, target) from error
        raise
    if durable:
        sync_folder(target.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable, where the system can."""
    try:
        fd = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        with contextlib.suppress(OSError):
            os.fsync(fd)
    finally:
        os.close(fd)
