"""One file opened for reading: positioned reads only, and errors that name the file."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from vitconv.errors import BadFile, UsageError
from vitconv.io.segment import read_at


class File:
    """Hold a file open. `size` is its length in bytes when it was opened."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fd = -1
        try:
            # Not blocking, so that a named pipe does not hang before it is refused.
            self.fd = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0))
            found = os.fstat(self.fd)
        except (OSError, ValueError) as error:
            reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
            raise UsageError(f"{path}: cannot be opened ({reason})") from error
        if not stat.S_ISREG(found.st_mode):
            self.close()
            raise UsageError(f"{path}: not a plain file")
        self.size = found.st_size

    def read(self, offset: int, nbytes: int) -> bytes:
        """Read exactly `nbytes` bytes at `offset`.

        Raises:
            BadFile: the file ends before that.
        """
        if offset < 0 or nbytes < 0 or offset + nbytes > self.size:
            raise BadFile(
                f"{self.path}: bytes {offset} to {offset + nbytes} are asked for, the file has {self.size}; it is"
                " damaged or cut short"
            )
        return read_at(self.fd, offset, nbytes)

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
