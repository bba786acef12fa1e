"""Comparing byte ranges of open files, by as many threads as there are processors for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from vitconv.io.segment import Segment, read_at
from vitconv.io.threads import in_threads

# Two of these stay in a processor's own cache, and memory for them is had without asking the system.
WINDOW = 128 << 10

Pair = tuple[Segment, Segment]


def first_difference(pairs: Sequence[Pair]) -> tuple[int, int] | None:
    """Return (which pair, at which byte at the latest) of the first difference; None when all bytes are the same.

    Raises:
        BadFile: a file ends before its range does.
        ValueError: the ranges of a pair are not of one length.
    """
    found: list[tuple[int, int]] = []

    def compare(window: tuple[int, int, int]) -> None:
        j, at, size = window
        a, b = pairs[j]
        # After a difference the rest is passed over.
        if not found and read_at(a.fd, a.offset + at, size) != read_at(b.fd, b.offset + at, size):
            found.append((j, at))

    in_threads(compare, list(_windows(pairs)))
    return min(found, default=None)


def _windows(pairs: Sequence[Pair]) -> Iterator[tuple[int, int, int]]:
    for j, (a, b) in enumerate(pairs):
        if a.nbytes != b.nbytes:
            raise ValueError(f"ranges of {a.nbytes} and {b.nbytes} bytes cannot be compared")
        for at in range(0, a.nbytes, WINDOW):
            yield j, at, min(WINDOW, a.nbytes - at)
