"""Transposes by blocks: every element in its place, of any width, and a single one that is wrong is seen."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from vitconv.conversion import stream
from vitconv.conversion.prepare import Order, prepare
from vitconv.layout.recipe import Piece


def turned(rows: int, columns: int) -> Piece:
    """The piece that turns a source of [columns rows] into an output of [rows columns]."""
    return Piece("w", 0, 0, ((rows, 1, columns), (columns, rows, 1)))


@pytest.mark.parametrize("kind", ["u1", "u2", "u4", "u8"])
@pytest.mark.parametrize(("rows", "columns"), [(1024, 16), (520, 65), (512, 8), (3, 5000), (1537, 130)])
def test_every_element_is_in_its_place_and_a_wrong_one_is_seen(rows: int, columns: int, kind: str) -> None:
    piece = turned(rows, columns)
    source = np.random.default_rng(0).integers(0, 250, columns * rows).astype(kind)
    out = np.zeros(rows * columns, kind)
    stream._move(out, source, piece)
    assert np.array_equal(out.reshape(rows, columns), source.reshape(columns, rows).T)
    assert stream._same(out, source, piece)
    for at in (0, len(out) // 2, len(out) - 1):
        wrong = out.copy()
        wrong[at] ^= 1
        assert not stream._same(wrong, source, piece)


def test_memory_is_used_again_and_only_when_asked(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    golden = Path(__file__).parents[2] / "fixtures" / "golden" / "npz" / "vit-jax-current.npz"
    prepared = prepare(golden, Order("timm"))
    try:
        plain = stream.outputs(prepared.plan, prepared.sources)
        fresh = {o.key: b"".join(bytes(c) for c in o.chunks()) for o in _own(plain)}
        again = stream.outputs(prepared.plan, prepared.sources, reuse=True)
        used = {o.key: b"".join(bytes(c) for c in o.chunks()) for o in _own(again)}
    finally:
        prepared.close()
    assert used == fresh and fresh
    scratch = stream.Scratch()
    first = scratch.bytes(0, 4096)
    first[:8] = rng.bytes(8)
    assert bytes(scratch.bytes(0, 8)) == bytes(first[:8])
    assert len(scratch.bytes(0, 1 << 20)) == 1 << 20


def _own(outs: list[stream.Out]) -> list[stream.Out]:
    """Return the outputs that are gathered in memory, not ranges of the file."""
    return [o for o in outs if all(not isinstance(c, stream.Segment) for c in o.chunks())]
