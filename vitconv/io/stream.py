"""Copying: byte ranges and buffers, in order, to one file, with a small constant memory."""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Callable, Iterable, Iterator

from vitconv.errors import BadFile, LayoutError
from vitconv.io.header import Chunk, Out
from vitconv.io.segment import Segment
from vitconv.io.threads import in_threads
from vitconv.record import dataclass

Progress = Callable[[int, int], None]

# How much a thread reads before it writes: what it has just read is then still in its processor's own cache.
PIECE = 512 << 10
# How much one call writes. ext4 wants as large a piece of memory for its cache: looking for larger ones can stall for
# longer than the whole copy takes; smaller ones cost system calls.
WRITE = 128 << 10
# Writers of one file take turns in the kernel, so two of them, of which one reads meanwhile, are enough.
THREADS = 2
# Below this a second thread does not pay.
SMALL = 8 << 20
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


@dataclass(frozen=True, eq=False)
class Piece:
    """What one thread writes at once: a buffer, `size` bytes of it, of which some are still to be read.

    `reads` are (byte range of another file, where in the buffer, where that range's whole ends).
    """

    position: int
    buffer: memoryview
    size: int
    reads: tuple[tuple[Segment, int, int], ...]


class Writer:
    """Write to `fd` from its current position on, and tell progress: `progress(bytes so far, total)`.

    All goes through buffers of one size, so that every write but the last is whole and begins at a multiple of it:
    writes that share pages cost a quarter more, be they made by the kernel (copy_file_range, sendfile) or by us. When
    there is much to write, two threads take one piece after the other.
    """

    def __init__(self, fd: int, total: int, progress: Progress | None) -> None:
        self.fd = fd
        self.total = total
        self.done = 0
        self.progress = progress
        self._told = 0
        self._free: list[memoryview] = []
        self._counting = threading.Lock()
        # A progress bar belongs to the thread that made it.
        self._owner = threading.get_ident()

    def run(self, chunks: Iterable[Chunk]) -> None:
        """Write chunks in order, and all of them; after an error nothing touches `fd` any more.

        Raises:
            BadFile: a file ends before a range of it does.
            OSError: something could not be written.
        """
        start = os.lseek(self.fd, 0, os.SEEK_CUR)
        in_threads(self._write, self._pieces(coalesce(chunks), start), THREADS if self.total > SMALL else 1)
        self._tell()

    def _pieces(self, chunks: Iterator[Chunk], position: int) -> Iterator[Piece]:
        """Fill buffers with what is in memory, and note what is to be read: chunks may not outlive the next one."""
        buffer, filled = self._buffer(), 0
        reads: list[tuple[Segment, int, int]] = []
        for chunk in chunks:
            data = None if isinstance(chunk, Segment) else memoryview(chunk).cast("B")
            nbytes = chunk.nbytes if isinstance(chunk, Segment) else len(data or b"")
            at = 0
            while at < nbytes:
                size = min(nbytes - at, PIECE - filled)
                if isinstance(chunk, Segment):
                    reads.append((Segment(chunk.fd, chunk.offset + at, size), filled, chunk.offset + nbytes))
                elif data is not None:
                    buffer[filled : filled + size] = data[at : at + size]
                at += size
                filled += size
                if filled == PIECE:
                    yield Piece(position, buffer, filled, tuple(reads))
                    position += filled
                    buffer, filled = self._buffer(), 0
                    reads = []
        if filled:
            yield Piece(position, buffer, filled, tuple(reads))

    def _buffer(self) -> memoryview:
        # Page-aligned: a buffer 16 bytes off, as malloc gives it, halves the speed of copies between aligned pages.
        return self._free.pop() if self._free else memoryview(mmap.mmap(-1, PIECE))

    def _write(self, piece: Piece) -> None:
        for segment, at, end in piece.reads:
            _read(segment, piece.buffer[at : at + segment.nbytes], end)
        written = 0
        while written < piece.size:
            part = piece.buffer[written : min(piece.size, written + WRITE)]
            written += os.pwrite(self.fd, part, piece.position + written)
        self._free.append(piece.buffer)
        with self._counting:
            self.done += piece.size
        if threading.get_ident() == self._owner and self.done < self.total:
            self._tell()

    def _tell(self) -> None:
        done = self.done
        if self.progress and done != self._told and (done - self._told >= STRIDE or done == self.total):
            self._told = done
            self.progress(done, self.total)


def _read(segment: Segment, buffer: memoryview, end: int) -> None:
    offset, done = segment.offset, 0
    while done < segment.nbytes:
        got = os.preadv(segment.fd, [buffer[done:]], offset + done)
        if got == 0:
            raise BadFile(f"the source ends {end - offset - done} bytes too early: it was changed while being read")
        done += got
