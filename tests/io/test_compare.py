"""Comparing byte ranges: every byte counts, in whichever window and thread it is."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from vitconv.errors import BadFile
from vitconv.io import compare, threads
from vitconv.io.compare import first_difference
from vitconv.io.segment import Segment

SIZE = 1000


@pytest.fixture(params=[1, 4], ids=["one thread", "four threads"])
def files(request, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[int, int]]:
    monkeypatch.setattr(compare, "WINDOW", 64)
    monkeypatch.setattr(threads, "processors", lambda: request.param)
    for name in "ab":
        (tmp_path / name).write_bytes(bytes(i % 251 for i in range(SIZE)))
    fds = [os.open(tmp_path / name, os.O_RDWR) for name in "ab"]
    yield fds[0], fds[1]
    for fd in fds:
        os.close(fd)


def whole(files: tuple[int, int]) -> list[tuple[Segment, Segment]]:
    a, b = files
    return [(Segment(a, at, size), Segment(b, at, size)) for at, size in ((0, 300), (300, 0), (300, 1), (301, 699))]


def test_equal_ranges(files: tuple[int, int]) -> None:
    assert first_difference(whole(files)) is None
    assert first_difference([]) is None


@pytest.mark.parametrize("at", [0, 63, 64, 299, 300, 301, 999])
def test_one_byte_is_seen(files: tuple[int, int], at: int) -> None:
    os.pwrite(files[1], b"\xff", at)
    found = first_difference(whole(files))
    assert found is not None
    pair, window = found
    first = whole(files)[pair][0].offset + window
    assert first <= at < first + 64


def test_a_file_that_ends_early_is_told(files: tuple[int, int]) -> None:
    os.truncate(files[1], 900)
    with pytest.raises(BadFile, match=r"ends \d+ bytes before"):
        first_difference(whole(files))


def test_ranges_of_two_lengths(files: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="ranges of 2 and 3 bytes"):
        first_difference([(Segment(files[0], 0, 2), Segment(files[1], 0, 3))])
