"""Comparing byte ranges of open files, by as many threads as there are processors for it."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence

from vitconv.io.segment import Segment, read_at

# Two of these stay in a processor's own cache, and memory for them is had without asking the system.
WINDOW = 128 << 10
# Reading is most of it, and copies from memory: more threads than this wait for the same memory.
THREADS = 4

Pair = tuple[Segment, Segment]


def first_difference(pairs: Sequence[Pair]) -> tuple[int, int] | None:
    """Return (which pair, at which byte at the latest) of the first difference; None when all bytes are the same.

    Raises:
        BadFile: a file ends before its range does.
        ValueError: the ranges of a pair are not of one length.
    """
    windows = list(_windows(pairs))
    todo = iter(windows)
    found: list[tuple[int, int]] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            for j, at, size in todo:
                if found or errors:
                    return
                a, b = pairs[j]
                if read_at(a.fd, a.offset + at, size) != read_at(b.fd, b.offset + at, size):
                    found.append((j, at))
        except BaseException as error:
            errors.append(error)

    others = [threading.Thread(target=work, daemon=True) for _ in range(min(_processors(), THREADS, len(windows)) - 1)]
    for thread in others:
        thread.start()
    work()
    for thread in others:
        thread.join()
    if errors:
        raise errors[0]
    return min(found, default=None)


def _windows(pairs: Sequence[Pair]) -> Iterator[tuple[int, int, int]]:
    for j, (a, b) in enumerate(pairs):
        if a.nbytes != b.nbytes:
            raise ValueError(f"ranges of {a.nbytes} and {b.nbytes} bytes cannot be compared")
        for at in range(0, a.nbytes, WINDOW):
            yield j, at, min(WINDOW, a.nbytes - at)


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
