"""Proof after writing, on request: the file is read again and every byte of it compared with the plan."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from vitconv.conversion.readings import flat_names
from vitconv.errors import LayoutError
from vitconv.io.compare import Pair, first_difference
from vitconv.io.segment import Segment, read_at
from vitconv.io.sink import Out
from vitconv.io.source import Checkpoint, open_checkpoint
from vitconv.io.tensor import Stored
from vitconv.layout.header import Header
from vitconv.layout.match import collapse, readings
from vitconv.layout.plan import Plan

WINDOW = 256 << 10


def reread(path: Path, outs: list[Out], p: Plan) -> None:
    """Open the written file, detect it anew, and compare every byte with what the plan takes from the source.

    Raises:
        LayoutError: the file is not what was planned; it must not be used.
    """
    with open_checkpoint(path) as written:
        found = {t.key: t for t in written.tensors}
        if set(found) != {o.key for o in outs}:
            odd = sorted(set(found) ^ {o.key for o in outs})
            raise LayoutError(f"{path} does not hold the planned tensors: {', '.join(collapse(odd))}")
        compare(written, outs)
        keys = {t.key for t in p.targets}
        if keys == set(found):
            v = p.target.variant
            # Head counts and the sides of patches that are kept as rows are in no tensor.
            told = {axis: n for axis, n in p.sizes.items() if axis in ("h", "p", "q")}
            flat = flat_names(found)
            again = readings(v.dialect, Header({flat.get(k, k): t.shape for k, t in found.items()}), v.taken, told)
            if not any(m.fits for m in again):
                raise LayoutError(f"{path} is not recognised as {v.dialect.name}")


def compare(written: Checkpoint, outs: Iterable[Out]) -> None:
    """Compare every byte of `outs` with what stands in a file under the same names.

    Raises:
        LayoutError: a tensor is not there, of another dtype or shape, or differs in a byte.
    """
    found = {t.key: t for t in written.tensors}
    places: list[tuple[str, int]] = []
    pairs: list[Pair] = []
    for o in outs:
        t = found.get(o.key)
        if t is None or (t.dtype, t.shape) != (o.dtype, o.shape):
            what = f"{t.dtype} {t.shape}" if t else "not there"
            raise LayoutError(f"{written.path}: {o.key} is {what}, planned was {o.dtype} {o.shape}")
        at = 0
        held = written.segment(t)
        for chunk in o.chunks():
            size = chunk.nbytes if isinstance(chunk, Segment) else memoryview(chunk).nbytes
            if isinstance(chunk, Segment) and held is not None and at + size <= held.nbytes:
                places.append((o.key, at))
                pairs.append((chunk, Segment(held.fd, held.offset + at, size)))
            elif at + size > t.nbytes:
                raise LayoutError(f"{written.path}: {o.key} has {t.nbytes} bytes, planned were more")
            elif isinstance(chunk, Segment):
                # Written in pieces, as a distributed checkpoint is.
                for start in range(0, size, WINDOW):
                    part = read_at(chunk.fd, chunk.offset + start, min(WINDOW, size - start))
                    _compare_values(written, t, at + start, memoryview(part))
            else:
                _compare_values(written, t, at, memoryview(chunk).cast("B"))
            at += size
        if at != t.nbytes:
            raise LayoutError(f"{written.path}: {o.key} has {t.nbytes} bytes, planned were {at}")
    differs = first_difference(pairs)
    if differs:
        key, at = places[differs[0]]
        raise LayoutError(f"{written.path}: {key} differs from the plan after byte {at + differs[1]}")


def _compare_values(written: Checkpoint, t: Stored, at: int, values: memoryview) -> None:
    for start in range(0, len(values), WINDOW):
        part = values[start : start + WINDOW]
        if written.read_range(t, at + start, at + start + len(part)) != part:
            raise LayoutError(f"{written.path}: {t.key} differs from the plan after byte {at + start}")
