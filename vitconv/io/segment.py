"""A plain byte range of an open file, and reading from one without moving its position."""

from __future__ import annotations

import os
from mmap import ACCESS_COPY, ALLOCATIONGRANULARITY, mmap

from vitconv.errors import BadFile
from vitconv.record import dataclass


@dataclass(frozen=True)
class Segment:
    """Name `nbytes` bytes at `offset` of the open file `fd`."""

    fd: int
    offset: int
    nbytes: int


def read_at(fd: int, offset: int, nbytes: int) -> bytes:
    """Read exactly `nbytes` bytes at `offset`.

    Raises:
        BadFile: the file ends before that.
    """
    data = os.pread(fd, nbytes, offset)
    if len(data) == nbytes:
        return data
    buffer = bytearray(nbytes)
    buffer[: len(data)] = data
    fill(fd, memoryview(buffer), offset, len(data))
    return bytes(buffer)


def fill(fd: int, buffer: memoryview, offset: int, done: int = 0) -> None:
    """Fill `buffer` from the file, its first byte being the one at `offset`; `done` bytes are there already."""
    while done < len(buffer):
        got = os.preadv(fd, [buffer[done:]], offset + done)
        if got == 0:
            raise _short(len(buffer) - done)
        done += got


def map_pages(segment: Segment) -> memoryview:
    """Return the bytes of a segment without copying them; they are held until nothing refers to them any more.

    Raises:
        BadFile: the file ends before that.
    """
    missing = segment.offset + segment.nbytes - os.fstat(segment.fd).st_size
    if missing > 0:
        raise _short(missing)
    inside = segment.offset % ALLOCATIONGRANULARITY
    pages = mmap(segment.fd, segment.nbytes + inside, access=ACCESS_COPY, offset=segment.offset - inside)
    return memoryview(pages)[inside:]


def _short(missing: int) -> BadFile:
    return BadFile(f"the file ends {missing} bytes before the data it promises; it is cut short or was changed")
