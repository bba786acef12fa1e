"""Turn a plan into outputs to write: byte ranges where the plan only moves runs, gathered buffers elsewhere."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from vitconv.errors import LayoutError
from vitconv.io.segment import Segment
from vitconv.io.sink import Chunk, Out
from vitconv.io.source import Checkpoint
from vitconv.io.tensor import ITEMSIZE, Stored
from vitconv.layout.buffers import buffer, is_buffer
from vitconv.layout.network import Cell
from vitconv.layout.plan import Plan, Target
from vitconv.layout.recipe import Piece
from vitconv.layout.rule import Const
from vitconv.record import dataclass

# Shorter runs cost more per system call than numpy's start-up saves.
SHORTEST_RUN = 512
MOST_RUNS = 1 << 14


@dataclass(frozen=True)
class Sources:
    """Where the tensors that a plan names are: {name: (open checkpoint, tensor)}."""

    where: Mapping[str, tuple[Checkpoint, Stored]]

    def segment(self, name: str) -> Segment | None:
        """Return the byte range of a tensor, or None when it must be gathered or inflated."""
        checkpoint, stored = self.where[name]
        return checkpoint.segment(stored)

    def read(self, name: str, memory: memoryview | None = None) -> memoryview:
        """Return the C-contiguous bytes of a tensor, in `memory` where they lie in the file as they are."""
        checkpoint, stored = self.where[name]
        return checkpoint.read(stored) if memory is None else checkpoint.read_into(stored, memory)

    def nbytes(self, name: str) -> int:
        """Return how many bytes a tensor has."""
        return self.where[name][1].nbytes

    def read_span(self, name: str, first: int, last: int) -> bytes:
        """Return the bytes of elements first..last of the C-contiguous tensor, reading no others of a plain file."""
        checkpoint, stored = self.where[name]
        return checkpoint.read_range(stored, first * stored.itemsize, last * stored.itemsize)

    def width(self, name: str) -> int:
        """Return the width of an element in bytes."""
        return self.where[name][1].itemsize


class Scratch:
    """Memory that one tensor after the other is gathered in: fresh memory comes page by page, which takes as long."""

    def __init__(self) -> None:
        self._held: dict[int, memoryview] = {}

    def bytes(self, place: int, nbytes: int) -> memoryview:
        """Return `nbytes` of the memory of one place, whatever they hold."""
        if len(self._held.get(place, b"")) < nbytes:
            self._held.pop(place, None)
            # Page-aligned, as the system gives it.
            self._held[place] = memoryview(mmap.mmap(-1, nbytes))
        return self._held[place][:nbytes]


def outputs(plan: Plan, sources: Sources, *, reuse: bool = False) -> list[Out]:
    """Return one output per target of the plan, in its order; data are read when their turn to be written comes.

    `reuse`: what an output gives is only good until the next one gives something.
    """
    scratch = Scratch() if reuse else None
    return [Out(t.key, t.dtype, t.shape, _chunks(plan, t, sources, scratch)) for t in plan.targets]


def _chunks(plan: Plan, t: Target, sources: Sources, scratch: Scratch | None) -> Callable[[], Iterator[Chunk]]:
    if t.const is not None:
        const = t.const
        return lambda: iter([constant_bytes(const, t.shape, t.dtype)])
    if is_ranges(t, sources):
        return lambda: _ranges(t, sources)
    return lambda: iter([gathered(plan, t, sources, scratch)])


def is_ranges(t: Target, sources: Sources) -> bool:
    """Say whether a target is nothing but byte ranges of files."""
    if any(p.source.startswith("=") or sources.segment(p.source) is None for p in t.pieces):
        return False
    long_enough = all(p.run * sources.width(p.source) >= SHORTEST_RUN or p.run == p.numel for p in t.pieces)
    return long_enough and sum(p.numel // p.run for p in t.pieces if p.numel) <= MOST_RUNS


def _ranges(t: Target, sources: Sources) -> Iterator[Segment]:
    """Yield the byte ranges of a target in order, neighbours joined."""
    runs: list[tuple[int, str, int, int]] = []
    for p in t.pieces:
        runs += [(dst, p.source, src, p.run) for src, dst in p.runs()]
    if len(t.pieces) > 1:
        runs.sort()
    last: Segment | None = None
    for _, name, src, n in runs:
        base, width = sources.segment(name), sources.width(name)
        assert base is not None
        here = Segment(base.fd, base.offset + src * width, n * width)
        if last is not None and last.fd == here.fd and last.offset + last.nbytes == here.offset:
            last = Segment(last.fd, last.offset, last.nbytes + here.nbytes)
            continue
        if last is not None:
            yield last
        last = here
    if last is not None:
        yield last


def gathered(plan: Plan, t: Target, sources: Sources, scratch: Scratch | None = None) -> memoryview:
    """Return the bytes of a target, moved or computed in memory, and proved by comparing them where they came from.

    Raises:
        LayoutError: the elements moved back are not those that were read.
    """
    import numpy as np

    width = ITEMSIZE[t.dtype]
    numel = 1
    for n in t.shape:
        numel *= n
    kind = np.dtype(f"u{width}")
    out = np.empty(numel, kind)
    if scratch is not None and numel:
        out = np.frombuffer(scratch.bytes(0, numel * width), kind)
    loaded: dict[str, Any] = {}
    for p in t.pieces:
        if p.source not in loaded:
            loaded[p.source] = np.frombuffer(_bytes(plan, p.source, sources, scratch, len(loaded) + 1), kind)
        _move(out, loaded[p.source], p)
    for p in t.pieces:
        if not _same(out, loaded[p.source], p):
            raise LayoutError(f"{t.key}: decoding what was written does not give back {p.source}")
    return out.view("u1").data


def _bytes(plan: Plan, name: str, sources: Sources, scratch: Scratch | None = None, place: int = 0) -> Any:
    if not name.startswith("="):
        nbytes = sources.nbytes(name)
        return sources.read(name, scratch.bytes(place, nbytes) if scratch is not None and nbytes else None)
    from vitconv.layout.edits.compute import evaluate

    return evaluate(plan.network, name, lambda cell: cell_array(plan, cell, sources))


def cell_array(plan: Plan, cell: Cell, sources: Sources) -> Any:
    """Return a canonical tensor of the plan as unsigned integers of its width, in its canonical shape: [shape], uN."""
    import numpy as np

    kind = np.dtype(f"u{ITEMSIZE[cell.dtype]}")
    view, factors = cell.view, [f for axis in cell.view.dims for f in axis]
    last = view.offset + 1 + sum((n - 1) * stride for n, stride in factors)
    if not cell.numel:
        return np.empty(cell.shape, kind)
    if view.tensor.startswith("="):
        flat = np.frombuffer(_bytes(plan, view.tensor, sources), kind)[view.offset : last]
    else:
        flat = np.frombuffer(sources.read_span(view.tensor, view.offset, last), kind)
    strides = [stride * kind.itemsize for _, stride in factors]
    strided = np.lib.stride_tricks.as_strided(flat, [n for n, _ in factors], strides, writeable=False)
    return np.ascontiguousarray(strided).reshape(cell.shape)


def _views(out: Any, source: Any, p: Piece) -> tuple[Any, Any]:
    import numpy as np

    sizes = [n for n, _, _ in p.dims]
    width = out.itemsize
    into = np.lib.stride_tricks.as_strided(out[p.dst :], sizes, [d * width for _, _, d in p.dims])
    whence = np.lib.stride_tricks.as_strided(source[p.src :], sizes, [s * width for _, s, _ in p.dims], writeable=False)
    return into, whence


# A transpose goes by blocks: so many elements of the axis that is runs in the source, and of that in the output. Rows
# of a matrix are often a power of two apart, so that they share their places in the processor's first cache, of which
# there are eight to twelve: eight runs at a time are read twice as fast as square blocks of the same size.
LONG, NARROW, WIDE = 1024, 8, 64


def _move(out: Any, source: Any, p: Piece) -> None:
    """Copy one piece; a transpose goes block by block, which keeps both sides in cache."""
    into, whence = _views(out, source, p)
    for at in _blocks(p, NARROW):
        into[at] = whence[at]


def _same(out: Any, source: Any, p: Piece) -> bool:
    """Compare one piece with where it came from: a transpose is turned once more, block by block, beside the output."""
    import numpy as np

    into, whence = _views(out, source, p)
    last = len(p.dims) - 1
    beside: Any = None
    for at in _blocks(p, WIDE):
        here, there = into[at], whence[at]
        if there.strides[last:] != (out.itemsize,) and there.ndim:
            if beside is None or beside.shape != here.shape:
                beside = np.empty(here.shape, out.dtype)
            for j in range(0, here.shape[last], NARROW):
                beside[..., j : j + NARROW] = there[..., j : j + NARROW]
            there = beside
        if (here != there).any():
            return False
    return True


def _blocks(p: Piece, width: int) -> Iterator[tuple[slice, ...]]:
    """Give the whole of a piece, or of a transpose blocks of its two turned axes, `width` of the output's."""
    whole = (slice(None),) * len(p.dims)
    turned = [j for j, (_, s, _) in enumerate(p.dims) if s == 1]
    if len(p.dims) < 2 or p.run > 1 or not turned or p.numel < LONG * NARROW:
        yield whole
        return
    a, b = turned[0], len(p.dims) - 1
    for i in range(0, p.dims[a][0], LONG):
        for j in range(0, p.dims[b][0], width):
            at = list(whole)
            at[a], at[b] = slice(i, i + LONG), slice(j, j + width)
            yield tuple(at)


def constant_bytes(const: Const, shape: tuple[int, ...], dtype: str = "") -> bytes:
    """Return the bytes of a constant tensor; `dtype` is that of the file where the constant leaves it open."""
    import numpy as np

    if is_buffer(const.value):
        from vitconv.layout.arith import from_float

        values = buffer(str(const.value), shape)
        return bytes(from_float(values, dtype)) if const.dtype == "float" else values.astype("<i8").tobytes()
    if const.dtype == "float":
        from vitconv.layout.arith import from_float

        values = const.value if isinstance(const.value, tuple) else (const.value,)
        rows = np.repeat(np.array(values, np.float64), shape[0] // len(values))
        return bytes(from_float(np.broadcast_to(rows.reshape(-1, *[1] * (len(shape) - 1)), shape), dtype))
    kinds = {"I64": "<i8", "I32": "<i4", "F32": "<f4", "F64": "<f8", "F16": "<f2", "BOOL": "?", "U8": "u1"}
    kind = np.dtype(kinds[const.dtype])
    if const.value == "arange":
        return np.broadcast_to(np.arange(shape[-1], dtype=kind), shape).tobytes()
    return np.full(shape, const.value, kind).tobytes()
