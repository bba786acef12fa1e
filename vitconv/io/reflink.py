"""Share the data blocks of the source instead of copying them, where the file system can (XFS, btrfs).

The new header is padded until the data lie at the same place within a block as in the source; whole blocks are then
shared by the FICLONERANGE call of Linux (ioctl_ficlonerange(2)), and only the ends are written.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from vitconv.io.header import Chunk
from vitconv.io.segment import Segment
from vitconv.io.stream import Writer, coalesce

BLOCK = 4096
_FICLONERANGE = 0x4020940D


def single_range(chunks: Iterable[Chunk]) -> Segment | None:
    """Return the one byte range that the chunks make up, or None when they are more than that."""
    found: Segment | None = None
    for chunk in coalesce(chunks):
        if found is not None or not isinstance(chunk, Segment):
            return None
        found = chunk
    return found


def clone(fd: int, position: int, source: Segment) -> bool:
    """Make the bytes of `source` appear at `position` of the empty file `fd`; say whether it was possible.

    Both positions leave the same rest when divided by BLOCK. What lies before `position` is left undefined.
    """
    if position % BLOCK != source.offset % BLOCK or source.nbytes < BLOCK:
        return False
    first = source.offset - source.offset % BLOCK
    end = source.offset + source.nbytes
    whole_tail = end == os.fstat(source.fd).st_size
    # Length 0 means "to the end of the source", the only case in which the length need not be a multiple of a block.
    length = 0 if whole_tail else end - end % BLOCK - first
    if not whole_tail and length <= 0:
        return False
    if not _ioctl(fd, source.fd, first, length, position - position % BLOCK):
        return False
    if not whole_tail:
        rest = Segment(source.fd, first + length, end - first - length)
        os.lseek(fd, position - position % BLOCK + length, os.SEEK_SET)
        Writer(fd, rest.nbytes, None).run([rest])
    return True


def _ioctl(fd: int, source_fd: int, source_offset: int, length: int, offset: int) -> bool:
    import struct

    try:
        import fcntl
    except ImportError:
        return False
    request = struct.pack("=qQQQ", source_fd, source_offset, length, offset)
    try:
        fcntl.ioctl(fd, _FICLONERANGE, request)
    except OSError:
        return False
    return True
