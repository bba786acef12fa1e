"""Copying: byte ranges and buffers, in order, to one file, with a small constant memory."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterable, Iterator

from vitconv.errors import BadFile, LayoutError
from vitconv.io.header import Chunk, Out
from vitconv.io.segment import Segment

Progress = Callable[[int, int], None]

# Larger pieces often stall on page allocation when memory is full; smaller ones cost system calls.
PIECE = 256 << 10
# How much is written between two reports of progress.
STRIDE = 16 << 20


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
    """Write to `fd` from its current position on, and tell progress: `progress(bytes so far, total)`.

    All goes through one buffer, so that every write but the last is whole and begins at a multiple of its size: writes
    that share pages cost a quarter more, be they made by the kernel (copy_file_range, sendfile) or by us.
    """

    def __init__(self, fd: int, total: int, progress: Progress | None) -> None:
        self.fd = fd
        self.total = total
        self.done = 0
        self.progress = progress
        self._told = 0
        # Page-aligned: a buffer 16 bytes off, as malloc gives it, halves the speed of copies between aligned pages.
        self._buffer = memoryview(mmap.mmap(-1, PIECE))
        self._filled = 0

    def write(self, data: memoryview) -> None:
        """Write a buffer of bytes."""
        position = 0
        while position < len(data):
            size = min(len(data) - position, PIECE - self._filled)
            self._buffer[self._filled : self._filled + size] = data[position : position + size]
            position += size
            self._advance(size)

    def copy(self, segment: Segment) -> None:
        """Write a byte range of another open file.

        Raises:
            BadFile: that file ends before the range does.
        """
        offset, left = segment.offset, segment.nbytes
        while left:
            stop = min(self._filled + left, PIECE)
            got = os.preadv(segment.fd, [self._buffer[self._filled : stop]], offset)
            if got == 0:
                raise BadFile(f"the source ends {left} bytes too early: it was changed while being read")
            offset += got
            left -= got
            self._advance(got)

    def flush(self) -> None:
        """Write what is still held back; call it once, at the end."""
        written = 0
        while written < self._filled:
            written += os.write(self.fd, self._buffer[written : self._filled])
        self._filled = 0
        if self.progress and self.done != self._told and (self.done - self._told >= STRIDE or self.done == self.total):
            self._told = self.done
            self.progress(self.done, self.total)

    def _advance(self, nbytes: int) -> None:
        self._filled += nbytes
        self.done += nbytes
        if self._filled == PIECE:
            self.flush()


def write_chunks(writer: Writer, chunks: Iterable[Chunk]) -> None:
    """Write chunks in order, and all of them."""
    for chunk in coalesce(chunks):
        if isinstance(chunk, Segment):
            writer.copy(chunk)
        else:
            writer.write(memoryview(chunk).cast("B"))
    writer.flush()
