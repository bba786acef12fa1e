"""Copying: byte ranges and buffers, in order, to one file, with a small constant memory."""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from queue import SimpleQueue

from vitconv.errors import BadFile, LayoutError
from vitconv.io.header import Chunk, Out
from vitconv.io.segment import Segment

Progress = Callable[[int, int], None]

# How much is read before it is handed to the thread that writes.
PIECE = 2 << 20
# How much one call writes. ext4 wants as large a piece of memory for its cache: at 256 KiB and more, finding one often
# stalls for longer than the whole copy takes; smaller ones cost system calls.
WRITE = 64 << 10
BUFFERS = 3
# Below this a second thread does not pay.
SMALL = 8 << 20
THREAD = "vitconv-writer"
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

    All goes through buffers of one size, so that every write but the last is whole and begins at a multiple of it:
    writes that share pages cost a quarter more, be they made by the kernel (copy_file_range, sendfile) or by us. When
    there is much to write, a second thread writes one buffer while the next is filled.
    """

    def __init__(self, fd: int, total: int, progress: Progress | None) -> None:
        self.fd = fd
        self.total = total
        self.done = 0
        self.progress = progress
        self._told = 0
        self._buffer = _aligned()
        self._filled = 0
        self._behind = Behind(fd) if total > SMALL else None

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

    def finish(self) -> None:
        """Write what is still held back; call it once, when all is well."""
        self._flush()
        if self._behind:
            self._behind.finish()
        self._tell()

    def stop(self) -> None:
        """Stop writing, whatever happened; after it nothing touches `fd`."""
        if self._behind:
            self._behind.stop()

    def _advance(self, nbytes: int) -> None:
        self._filled += nbytes
        self.done += nbytes
        if self._filled == PIECE:
            self._flush()
            if self.done < self.total:
                self._tell()

    def _flush(self) -> None:
        if self._behind:
            self._buffer = self._behind.write(self._buffer, self._filled)
        else:
            _write_all(self.fd, self._buffer[: self._filled])
        self._filled = 0

    def _tell(self) -> None:
        if self.progress and self.done != self._told and (self.done - self._told >= STRIDE or self.done == self.total):
            self._told = self.done
            self.progress(self.done, self.total)


class Behind:
    """A thread that writes buffers to `fd` in the order they are handed over."""

    def __init__(self, fd: int) -> None:
        self._full: SimpleQueue[tuple[memoryview, int] | None] = SimpleQueue()
        self._free: SimpleQueue[memoryview] = SimpleQueue()
        self._error: BaseException | None = None
        for _ in range(BUFFERS - 1):
            self._free.put(_aligned())
        self._thread = threading.Thread(target=self._run, args=(fd,), name=THREAD, daemon=True)
        self._thread.start()

    def write(self, buffer: memoryview, filled: int) -> memoryview:
        """Hand over the first `filled` bytes of a buffer, and return another one to fill.

        Raises:
            OSError: an earlier buffer could not be written.
        """
        self._full.put((buffer, filled))
        free = self._free.get()
        if self._error:
            raise self._error
        return free

    def finish(self) -> None:
        """Wait until all is written.

        Raises:
            OSError: something could not be.
        """
        self.stop()
        if self._error:
            raise self._error

    def stop(self) -> None:
        """Wait for the thread to end; what was handed over is still written."""
        if self._thread.is_alive():
            self._full.put(None)
            self._thread.join()

    def _run(self, fd: int) -> None:
        while item := self._full.get():
            buffer, filled = item
            try:
                if self._error is None:
                    _write_all(fd, buffer[:filled])
            except BaseException as error:
                self._error = error
            self._free.put(buffer)


def _aligned() -> memoryview:
    # Page-aligned: a buffer 16 bytes off, as malloc gives it, halves the speed of copies between aligned pages.
    return memoryview(mmap.mmap(-1, PIECE))


def _write_all(fd: int, data: memoryview) -> None:
    written = 0
    while written < len(data):
        written += os.write(fd, data[written : written + WRITE])


def write_chunks(writer: Writer, chunks: Iterable[Chunk]) -> None:
    """Write chunks in order, and all of them."""
    try:
        for chunk in coalesce(chunks):
            if isinstance(chunk, Segment):
                writer.copy(chunk)
            else:
                writer.write(memoryview(chunk).cast("B"))
        writer.finish()
    finally:
        writer.stop()
