"""Copying: byte ranges and buffers, in order, to one file, with a small constant memory."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator

from vitconv.errors import BadFile, LayoutError
from vitconv.io.header import Chunk, Out
from vitconv.io.segment import Segment

Progress = Callable[[int, int], None]

# Larger pieces often stall on page allocation when memory is full; smaller ones cost system calls.
PIECE = 256 << 10
# How much is copied between two reports of progress.
STRIDE = 16 << 20
_NOT_IN_KERNEL = {errno.ENOSYS, errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP, errno.EBADF, errno.EPERM}


def coalesce(chunks: Iterable[Chunk]) -> Iterator[Chunk]:
    """Join byte ranges that follow each other in the same file; leave out empty chunks."""
    held: Segment | None = None
    for chunk in chunks:
        if isinstance(chunk, Segment):
            if chunk.nbytes == 0:
                continue
            if held and held.fd == chunk.fd and held.offset + held.nbytes == chunk.offset:
                held = Segment(held.fd, held.offset, held.nbytes + chunk.nbytes)
                continue
            if held:
                yield held
            held = chunk
            continue
        if held:
            yield held
            held = None
        if memoryview(chunk).nbytes:
            yield chunk
    if held:
        yield held


def counted(outs: Iterable[Out]) -> Iterator[Chunk]:
    """Give the chunks of all outputs in order, and hold each output to the size that its header states."""
    for out in outs:
        total = 0
        for chunk in out.chunks():
            total += chunk.nbytes if isinstance(chunk, Segment) else memoryview(chunk).nbytes
            yield chunk
        if total != out.nbytes:
            raise LayoutError(f"{out.key} was given {total} bytes, its header says {out.nbytes}")


class Writer:
    """Write to `fd` from its current position on, and tell progress: `progress(bytes so far, total)`."""

    def __init__(self, fd: int, total: int, progress: Progress | None) -> None:
        self.fd = fd
        self.total = total
        self.done = 0
        self.progress = progress
        self._told = 0
        self._buffer = memoryview(bytearray(PIECE))
        self._in_kernel = hasattr(os, "copy_file_range")

    def write(self, data: memoryview) -> None:
        """Write a buffer of bytes whole, in pieces."""
        position = 0
        while position < len(data):
            position += os.write(self.fd, data[position : position + PIECE])
        self._advance(len(data))

    def copy(self, segment: Segment) -> None:
        """Write a byte range of another open file.

        Raises:
            BadFile: that file ends before the range does.
        """
        offset, left = segment.offset, segment.nbytes
        while left:
            got = self._copy_piece(segment.fd, offset, left)
            if got == 0:
                raise BadFile(f"the source ends {left} bytes too early: it was changed while being read")
            offset += got
            left -= got

    def _copy_piece(self, fd: int, offset: int, left: int) -> int:
        # Inside the kernel: no buffer of ours, and file systems that can share blocks do so by themselves.
        if self._in_kernel:
            try:
                got = os.copy_file_range(fd, self.fd, min(left, STRIDE), offset_src=offset)
            except OSError as error:
                if error.errno not in _NOT_IN_KERNEL:
                    raise
                got = 0
            if got:
                self._advance(got)
                return got
            # Some file systems answer 0 for a file that does have data: only a plain read is believed.
            self._in_kernel = False
        got = os.preadv(fd, [self._buffer[: min(left, PIECE)]], offset)
        self.write(self._buffer[:got])
        return got

    def _advance(self, nbytes: int) -> None:
        self.done += nbytes
        if self.progress and (self.done - self._told >= STRIDE or self.done == self.total):
            self._told = self.done
            self.progress(self.done, self.total)


def write_chunks(writer: Writer, chunks: Iterable[Chunk]) -> None:
    """Write chunks in order."""
    for chunk in coalesce(chunks):
        if isinstance(chunk, Segment):
            writer.copy(chunk)
        else:
            writer.write(memoryview(chunk).cast("B"))
