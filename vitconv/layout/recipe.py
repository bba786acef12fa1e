"""Where elements lie, and how they move: strided views of stored tensors and the pieces that copy between them.

A part of a rule is a strided view of the whole. Composing the view a source dialect gives with the view a target
dialect gives yields a piece: a box of (count, source stride, target stride), all in elements. A box whose inner run is
long is a copy of byte ranges; any other is a gather. That each element is used exactly once is proved on the boxes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

from vitconv.errors import LayoutError
from vitconv.layout.shape import Axes, Axis, places, shape_of
from vitconv.layout.unify import Bound
from vitconv.record import dataclass

Factor = tuple[int, int]
Box = tuple[int, tuple[Factor, ...]]
MAX_RUNS = 1 << 16


@dataclass(frozen=True)
class View:
    """A canonical tensor seen inside a stored one.

    `dims` has, per canonical axis, its factors (size, stride), the outermost first; offset and strides in elements.
    """

    tensor: str
    offset: int
    dims: tuple[tuple[Factor, ...], ...]


@dataclass(frozen=True)
class Piece:
    """A box of elements copied from `source`, starting at element `src`, to element `dst` of the target.

    `dims` are (count, source stride, target stride), the widest target stride first.
    """

    source: str
    src: int
    dst: int
    dims: tuple[tuple[int, int, int], ...]

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(n for n, _, _ in self.dims)

    @property
    def run(self) -> int:
        """Number of elements that lie together on both sides."""
        return self.dims[-1][0] if self.dims and self.dims[-1][1:] == (1, 1) else 1

    def runs(self) -> Iterator[tuple[int, int]]:
        """Yield (source element, target element) of every run, in target order."""
        outer = self.dims[:-1] if self.dims and self.dims[-1][1:] == (1, 1) else self.dims
        if self.numel:
            yield from _walk(self.src, self.dst, outer)


def _walk(src: int, dst: int, dims: tuple[tuple[int, int, int], ...]) -> Iterator[tuple[int, int]]:
    if not dims:
        yield src, dst
        return
    n, s, d = dims[0]
    for j in range(n):
        yield from _walk(src + j * s, dst + j * d, dims[1:])


class Views:
    """Where the parts of rules lie inside their wholes, for given axis sizes.

    The layers of a network share their rules, so what was worked out for one layer is kept for the others.
    """

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self._sizes = sizes
        self._known: dict[tuple[int, int, int], tuple[int, tuple[tuple[Factor, ...], ...]]] = {}

    def of(self, b: Bound, j: int) -> View:
        """Return where part `j` of the rule lies inside the whole."""
        known = self._known.get((id(b.rule), j, len(b.parts)))
        if known is None:
            known = self._known[id(b.rule), j, len(b.parts)] = self._work_out(b, j)
        return View(b.key, *known)

    def _work_out(self, b: Bound, j: int) -> tuple[int, tuple[tuple[Factor, ...], ...]]:
        offset, where = places(b.rule.axes, b.env(self._sizes), term=j if b.rule.joined is not None else 0)
        if "*" in where:
            offset += j * where.pop("*")[1]
        return offset, tuple(tuple(where[x] for x in axis.atoms if x != "1") for axis in part_axes(b, j))


def view_of(b: Bound, j: int, sizes: Mapping[str, int]) -> View:
    """Return where part `j` of the rule lies inside the whole."""
    return Views(sizes).of(b, j)


def part_axes(b: Bound, j: int) -> Axes:
    """Return the axes of part `j`."""
    return b.rule.parts[0 if b.rule.scanned else j].axes


def part_shape(b: Bound, j: int, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Return the shape of part `j`."""
    return shape_of(part_axes(b, j), sizes)


def dense_view(tensor: str, shape: Sequence[int]) -> View:
    """Return the view of a C-contiguous tensor on itself."""
    axes = tuple(Axis((f"x{j}",)) for j in range(len(shape)))
    offset, where = places(axes, {f"x{j}": n for j, n in enumerate(shape)})
    return View(tensor, offset, tuple((where[a.atoms[0]],) for a in axes))


def compose(src: View, dst: View) -> Piece:
    """Return the piece that copies `src` to `dst`, two views of one canonical tensor.

    Raises:
        LayoutError: the two sides cut an axis at places that do not nest.
    """
    if len(src.dims) != len(dst.dims):
        raise LayoutError(f"{src.tensor} and {dst.tensor} see one tensor with {len(src.dims)} and {len(dst.dims)} axes")
    box = [t for a, b in zip(src.dims, dst.dims, strict=True) for t in _refine(a, b, src, dst)]
    return Piece(src.tensor, src.offset, dst.offset, _merge(sorted(box, key=lambda t: -t[2])))


def _refine(a: tuple[Factor, ...], b: tuple[Factor, ...], src: View, dst: View) -> Iterator[tuple[int, int, int]]:
    """Cut two factorings of one axis at their common places, from the inside out."""
    left, right = list(a), list(b)
    while left and right:
        (n, s), (m, d) = left.pop(), right.pop()
        g = math.gcd(n, m)
        if g != min(n, m):
            raise LayoutError(f"{src.tensor} and {dst.tensor} cut an axis into {n} and {m}, which do not nest")
        yield g, s, d
        if n > g:
            left.append((n // g, s * g))
        if m > g:
            right.append((m // g, d * g))
    if any(n != 1 for n, _ in left + right):
        raise LayoutError(f"{src.tensor} and {dst.tensor} disagree about the size of an axis")


def _merge(box: list[tuple[int, int, int]]) -> tuple[tuple[int, int, int], ...]:
    out: list[tuple[int, int, int]] = []
    for n, s, d in box:
        if n == 1:
            continue
        if out and out[-1][1] == n * s and out[-1][2] == n * d:
            out[-1] = (out[-1][0] * n, s, d)
        else:
            out.append((n, s, d))
    return tuple(out)


def tiles(boxes: Sequence[Box], numel: int) -> bool:
    """Return True when the boxes (offset, ((count, stride), ...)) use every element of 0..numel exactly once.

    Boxes that differ only in their offset are joined into one with a further axis, boxes that continue each other along
    an axis are joined along it; what is left must be one run. Falls back on walking the runs.
    """
    if sum(math.prod(n for n, _ in dims) for _, dims in boxes) != numel:
        return False
    if numel == 0:
        return True
    joined = _join([(o, _sorted(dims)) for o, dims in boxes])
    if len(joined) == 1:
        return joined[0] == (0, ((numel, 1),) if numel > 1 else ())
    return _walk_tiles(joined, numel)


def _sorted(dims: tuple[Factor, ...]) -> tuple[Factor, ...]:
    out: list[Factor] = []
    for n, s in sorted((t for t in dims if t[0] != 1), key=lambda t: -t[1]):
        if out and out[-1][1] == n * s:
            out[-1] = (out[-1][0] * n, s)
        else:
            out.append((n, s))
    return tuple(out)


def _join(boxes: list[Box]) -> list[Box]:
    """Join boxes into fewer, until nothing joins."""
    while len(boxes) > 1:
        boxes.sort()
        first = boxes[0]
        same = [o for o, dims in boxes if dims == first[1]]
        if len(same) == len(boxes):
            step = same[1] - same[0]
            if step <= 0 or any(b - a != step for a, b in itertools.pairwise(same)):
                return boxes
            return [(same[0], _sorted((*first[1], (len(same), step))))]
        merged = _along(boxes)
        if merged is None:
            return boxes
        boxes = merged
    return boxes


def _along(boxes: list[Box]) -> list[Box] | None:
    """Join the first two boxes when they continue each other along one axis, of any extent."""
    (o1, d1), (o2, d2) = boxes[:2]
    for stride in {s for _, s in d1 + d2} | {1}:
        (n1, rest1), (n2, rest2) = _apart(d1, stride), _apart(d2, stride)
        if rest1 == rest2 and o2 == o1 + n1 * stride:
            return [(o1, _sorted((*rest1, (n1 + n2, stride)))), *boxes[2:]]
    return None


def _apart(dims: tuple[Factor, ...], stride: int) -> tuple[int, tuple[Factor, ...]]:
    """Return the extent along one stride, and the other axes; one of two equal strides stays, and overlaps."""
    at = next((j for j, (_, s) in enumerate(dims) if s == stride), None)
    return (1, dims) if at is None else (dims[at][0], dims[:at] + dims[at + 1 :])


def _walk_tiles(boxes: list[Box], numel: int) -> bool:
    spans: list[tuple[int, int]] = []
    for offset, dims in boxes:
        run = dims[-1][0] if dims and dims[-1][1] == 1 else 1
        outer = dims[:-1] if dims and dims[-1][1] == 1 else dims
        if math.prod(n for n, _ in outer) + len(spans) > 16 * MAX_RUNS:
            raise LayoutError("too many separate runs to prove that each element is used once")
        spans += [(at, at + run) for at, _ in _walk(offset, 0, tuple((n, s, 0) for n, s in outer))]
    spans.sort()
    end = 0
    for a, b in spans:
        if a != end:
            return False
        end = b
    return end == numel
