"""Are two checkpoints the same network? Compared bit by bit through the canonical layout."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from typing import Any

from vitconv.conversion.recognise import Recognised
from vitconv.io.compare import WINDOW
from vitconv.io.tensor import ITEMSIZE
from vitconv.layout.canonical import template_of
from vitconv.layout.network import Cell, Network, decode
from vitconv.record import dataclass


@dataclass(frozen=True)
class Pair:
    """One canonical tensor on both sides.

    `verdict` is same, differs, dtype, shape, only-a or only-b. For floats of equal shape: `worst` is the largest
    absolute difference, `relative` that divided by the largest magnitude in A, `count` how many elements differ.
    """

    name: str
    verdict: str
    detail: str = ""
    worst: float | None = None
    relative: float | None = None
    count: int | None = None


@dataclass(frozen=True)
class Diff:
    """The comparison of two checkpoints: pairs in canonical order, and the facts that differ."""

    pairs: tuple[Pair, ...]
    facts: dict[str, tuple[Any, Any]] = field(default_factory=dict)

    @property
    def same(self) -> bool:
        """True when something was compared and every tensor is the same bits."""
        return bool(self.pairs) and all(p.verdict == "same" for p in self.pairs)


def diff(a: Recognised, b: Recognised) -> Diff:
    """Compare two recognised checkpoints tensor by tensor; equal bits need no numpy, differences are measured."""
    left, right = decode(a.match, a.dtypes, a.facts), decode(b.match, b.dtypes, b.facts)
    names = [*left.cells, *(n for n in right.cells if n not in left.cells)]
    names.sort(key=lambda n: (template_of(n).startswith("blocks"), n not in left.cells))
    return Diff(tuple(_pair(n, a, b, left, right) for n in names), a.facts.differences(b.facts))


def _pair(name: str, a: Recognised, b: Recognised, left: Network, right: Network) -> Pair:
    x, y = left.cells.get(name), right.cells.get(name)
    if x is None or y is None:
        return Pair(name, "only-b" if x is None else "only-a")
    if x.shape != y.shape:
        return Pair(name, "shape", f"{list(x.shape)} and {list(y.shape)}")
    if x.dtype == y.dtype and _same(a, b, x, y):
        return Pair(name, "same")
    return _measured(a, b, x, y)


def _same(a: Recognised, b: Recognised, x: Cell, y: Cell) -> bool:
    """Compare bits, in windows where both sides are plain ranges."""
    left, right = ranges_of(a, x), ranges_of(b, y)
    if left is None or right is None:
        return bool((bits_of(a, x) == bits_of(b, y)).all())
    return all(p == q for p, q in zip(left, right, strict=True))


def ranges_of(r: Recognised, c: Cell) -> Iterator[bytes] | None:
    """Return the tensor's bytes in windows when it is one run of a tensor in the file, else None."""
    expect = 1
    for n, stride in reversed([f for axis in c.view.dims for f in axis]):
        if n != 1 and stride != expect:
            return None
        expect *= n
    stored, width = r.stored[c.view.tensor], ITEMSIZE[c.dtype]
    first, last = c.view.offset * width, (c.view.offset + c.numel) * width
    return (bytes(r.checkpoint.read_range(stored, at, min(at + WINDOW, last))) for at in range(first, last, WINDOW))


def bits_of(r: Recognised, c: Cell) -> Any:
    """Return the bits as unsigned integers: [shape], uN."""
    import numpy as np

    kind = np.dtype(f"u{ITEMSIZE[c.dtype]}")
    flat = np.frombuffer(r.checkpoint.read(r.stored[c.view.tensor]), kind)
    factors = [f for axis in c.view.dims for f in axis]
    strided = np.lib.stride_tricks.as_strided(
        flat[c.view.offset :], [n for n, _ in factors], [s * kind.itemsize for _, s in factors], writeable=False
    )
    return np.ascontiguousarray(strided).reshape(c.shape)


def _measured(a: Recognised, b: Recognised, x: Cell, y: Cell) -> Pair:
    import numpy as np

    from vitconv.layout.arith import to_float

    both = [to_float(bits_of(r, c).tobytes(), c.dtype, c.shape).astype(np.float64) for r, c in ((a, x), (b, y))]
    with np.errstate(all="ignore"):
        gap = np.abs(both[0] - both[1])
        equal = (both[0] == both[1]) | (np.isnan(both[0]) & np.isnan(both[1]))
        gap = np.where(equal, 0.0, gap)
    worst = float(np.nanmax(gap)) if gap.size else 0.0
    if np.isnan(gap).any():
        worst = float("nan")
    scale = float(np.nanmax(np.abs(both[0]))) if gap.size else 0.0
    count = int((~equal).sum())
    kind = "dtype" if x.dtype != y.dtype else "differs"
    detail = f"{x.dtype} and {y.dtype}" if x.dtype != y.dtype else ("" if count else "equal values, other bits")
    return Pair(x.name, kind, detail, worst, worst / scale if scale else None, count)
