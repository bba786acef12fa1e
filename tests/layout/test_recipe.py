"""Views, pieces and tilings: against numpy's reshape and transpose, and against counting every element."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitconv.errors import LayoutError
from vitconv.layout import recipe
from vitconv.layout.recipe import Piece, View, compose, dense_view, part_shape, tiles, view_of
from vitconv.layout.rule import rule
from vitconv.layout.unify import Bound

Box = tuple[int, tuple[tuple[int, int], ...]]


def elements(box: Box) -> list[int]:
    """Return every element of a box, one by one."""
    offset, dims = box
    return [offset + sum(k * s for k, (_, s) in zip(ks, dims, strict=True)) for ks in indices([n for n, _ in dims])]


def indices(shape: list[int]) -> itertools.product:
    return itertools.product(*map(range, shape))


def truth(boxes: list[Box], numel: int) -> bool:
    """Decide by counting."""
    return sorted(e for b in boxes for e in elements(b)) == list(range(numel))


@st.composite
def arrays_cut(draw: st.DrawFn) -> tuple[list[Box], int]:
    """Cut an array into boxes along random axes, again and again: always a true tiling; axes and boxes shuffled."""
    shape = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    strides = [math.prod(shape[j + 1 :]) for j in range(len(shape))]
    todo = [(0, list(zip(shape, strides, strict=True)))]
    for _ in range(draw(st.integers(0, 4))):
        offset, dims = todo.pop(draw(st.integers(0, len(todo) - 1)))
        axis = draw(st.integers(0, len(dims) - 1))
        n, s = dims[axis]
        at = draw(st.integers(0, n))
        todo.append((offset, [*dims[:axis], (at, s), *dims[axis + 1 :]]))
        todo.append((offset + at * s, [*dims[:axis], (n - at, s), *dims[axis + 1 :]]))
    boxes = [(o, tuple(draw(st.permutations(dims)))) for o, dims in todo if all(n for n, _ in dims)]
    return draw(st.permutations(boxes)), math.prod(shape)


@given(arrays_cut())
def test_every_cut_array_is_a_tiling(case: tuple[list[Box], int]) -> None:
    boxes, numel = case
    assert truth(boxes, numel)
    assert tiles(boxes, numel)


@given(arrays_cut(), st.data())
def test_a_damaged_tiling_is_never_accepted(case: tuple[list[Box], int], data: st.DataObject) -> None:
    boxes, numel = case
    j = data.draw(st.integers(0, len(boxes) - 1))
    offset, dims = boxes[j]
    damage = data.draw(st.sampled_from(["drop", "twice", "shift", "stride", "count"]))
    if damage == "drop":
        boxes = boxes[:j] + boxes[j + 1 :]
    elif damage == "twice":
        boxes = [*boxes, boxes[j]]
    elif damage == "shift":
        boxes = [*boxes[:j], (offset + data.draw(st.integers(1, 3)), dims), *boxes[j + 1 :]]
    else:
        k = data.draw(st.integers(0, len(dims) - 1))
        n, s = dims[k]
        new = (n, s + 1) if damage == "stride" else (n + 1, s)
        boxes = [*boxes[:j], (offset, (*dims[:k], new, *dims[k + 1 :])), *boxes[j + 1 :]]
    assert tiles(boxes, numel) == truth(boxes, numel)


boxes_of_anything = st.lists(
    st.tuples(st.integers(0, 8), st.lists(st.tuples(st.integers(1, 3), st.integers(1, 6)), max_size=3).map(tuple)),
    min_size=1,
    max_size=4,
)


@given(boxes_of_anything, st.integers(0, 1))
def test_anything_is_decided_as_by_counting(boxes: list[Box], off: int) -> None:
    numel = sum(len(elements(b)) for b in boxes) + off
    assert tiles(boxes, numel) == truth(boxes, numel)


def test_an_overlap_inside_one_box_is_not_joined_away() -> None:
    """0 1 1 2 and 2 3: six elements in all, and both boxes share their stride."""
    assert not tiles([(0, ((2, 1), (2, 1))), (2, ((2, 1),))], 6)
    assert not tiles([(0, ((2, 1), (2, 1)))], 4)


@pytest.mark.parametrize(
    ("whole", "parts", "sizes"),
    [
        ("w: (* a) d", "{q,k,v}: a d", {"a": 4, "d": 5}),
        ("w: (h * e) d", "{q,k,v}: (h e) d", {"h": 2, "e": 3, "d": 5}),
        ("w: (a *) d", "{q,k,v}: a d", {"a": 4, "d": 5}),
        ("w: d h * e", "{q,k,v}: (h e) d", {"h": 2, "e": 3, "d": 5}),
        ("w: d (1+r+n)", ("x: d", "y: r d", "z: n d"), {"d": 3, "r": 2, "n": 4}),
        ("w: 1 (1+n) d", ("x: d", "z: n d"), {"d": 3, "n": 4}),
        ("w: k (1+n) d", ("x: d k", "z: d n k"), {"d": 3, "n": 4, "k": 2}),
        ("w: d (m+f)", ("x: m d", "y: f d"), {"d": 3, "m": 7, "f": 2}),
        ("w: p q c d", "x: d c p q", {"p": 2, "q": 3, "c": 3, "d": 4}),
    ],
)
def test_the_parts_of_a_rule_tile_its_whole_and_a_lost_part_does_not(whole: str, parts: object, sizes: dict) -> None:
    (r,) = rule(whole, *([parts] if isinstance(parts, str) else parts))
    b = Bound(r.key, r, None, tuple(p.key for p in r.parts))
    views = [view_of(b, j, sizes) for j in range(len(r.parts))]
    boxes = [(v.offset, tuple(f for axis in v.dims for f in axis)) for v in views]
    numel = sum(math.prod(part_shape(b, j, sizes)) for j in range(len(r.parts)))
    assert truth(boxes, numel)
    assert tiles(boxes, numel)
    assert tiles(boxes[::-1], numel)
    assert not tiles(boxes[1:], numel)
    assert not tiles([boxes[0]] * len(boxes), numel) or len(boxes) == 1


def carry(piece: Piece, source: np.ndarray, numel: int) -> np.ndarray:
    """Carry a piece out element by element."""
    out = np.full(numel, -1)
    for ks in indices([n for n, _, _ in piece.dims]):
        src = piece.src + sum(k * s for k, (_, s, _) in zip(ks, piece.dims, strict=True))
        dst = piece.dst + sum(k * d for k, (_, _, d) in zip(ks, piece.dims, strict=True))
        out[dst] = source[src]
    return out


@st.composite
def two_sides(draw: st.DrawFn) -> tuple[list[int], list[int], list[int], list[list[int]]]:
    """Draw atoms, the order in which each of two codebases stores them, and how canonical axes group them."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=5))
    order = range(len(sizes))
    cuts = sorted(draw(st.sets(st.integers(1, max(1, len(sizes) - 1)), max_size=2)) | {0, len(sizes)})
    groups = [list(range(a, b)) for a, b in itertools.pairwise(cuts)]
    return sizes, list(draw(st.permutations(order))), list(draw(st.permutations(order))), groups


def stored(sizes: list[int], order: list[int], groups: list[list[int]], name: str) -> View:
    """Return the view of a canonical tensor whose atoms are stored in `order`."""
    stride, at = 1, {}
    for atom in reversed(order):
        at[atom] = stride
        stride *= sizes[atom]
    return View(name, 0, tuple(tuple((sizes[a], at[a]) for a in g) for g in groups))


@given(two_sides())
def test_compose_is_numpys_transpose(case: tuple[list[int], list[int], list[int], list[list[int]]]) -> None:
    sizes, left, right, groups = case
    numel = math.prod(sizes)
    source = np.arange(numel)
    canonical = source.reshape([sizes[a] for a in left]).transpose([left.index(a) for a in range(len(sizes))])
    expected = canonical.transpose(right).reshape(-1)
    piece = compose(stored(sizes, left, groups, "A"), stored(sizes, right, groups, "B"))
    assert np.array_equal(carry(piece, source, numel), expected)
    assert piece.numel == numel
    runs = [(s + k, d + k) for s, d in piece.runs() for k in range(piece.run)]
    assert all(expected[d] == source[s] for s, d in runs)
    assert [d for _, d in runs] == list(range(numel))


@pytest.mark.parametrize(
    ("left", "right", "sizes"),
    [
        ("w: (h e) d", "w: a d", {"h": 2, "e": 6, "a": 12}),
        ("w: h e d", "w: d a", {"h": 2, "e": 6, "a": 12}),
        ("w: d h e", "w: (g k) d", {"h": 2, "e": 6, "g": 4, "k": 3}),
        ("w: e d h", "w: (g k) d", {"h": 2, "e": 6, "g": 4, "k": 3}),
        ("w: (g h e) d", "w: (k l) d", {"g": 2, "h": 2, "e": 6, "k": 2, "l": 12}),
    ],
)
def test_axes_cut_differently_nest(left: str, right: str, sizes: dict[str, int]) -> None:
    parts = [f"x: {_part(side)}" for side in (left, right)]
    a, b = (
        view_of(Bound("w", *rule(w, p), None, ("x",)), 0, {**sizes, "d": 5})
        for w, p in zip((left, right), parts, strict=True)
    )
    index = np.arange(60 * (2 if "l" in sizes else 1))
    expected = np.empty_like(index)
    expected[_gathered(b)] = index[_gathered(a)]
    assert np.array_equal(carry(compose(a, b), index, len(index)), expected)


def _part(whole: str) -> str:
    """Return the canonical axes `(all others) d`."""
    names = sorted(set("agkhel") & set(whole.split(":")[1]), key="agkhel".index)
    return (f"({' '.join(names)})" if len(names) > 1 else names[0]) + " d"


def _gathered(v: View) -> np.ndarray:
    """Return the place of every canonical element in order."""
    dims = [f for axis in v.dims for f in axis]
    return np.array(elements((v.offset, tuple(dims))))


def test_axes_that_do_not_nest_are_refused() -> None:
    with pytest.raises(LayoutError, match="A and B cut an axis into 6 and 4, which do not nest"):
        compose(View("A", 0, (((4, 6), (6, 1)),)), View("B", 0, (((6, 4), (4, 1)),)))
    with pytest.raises(LayoutError, match="disagree about the size of an axis"):
        compose(dense_view("A", [4]), dense_view("B", [8]))
    with pytest.raises(LayoutError, match="with 1 and 2 axes"):
        compose(dense_view("A", [4]), dense_view("B", [4, 1]))


def test_empty_and_single_elements() -> None:
    assert tiles([], 0)
    assert tiles([(0, ())], 1)
    assert not tiles([(1, ())], 1)
    assert list(compose(dense_view("A", [0, 3]), dense_view("B", [0, 3])).runs()) == []
    assert list(compose(dense_view("A", []), dense_view("B", [])).runs()) == [(0, 0)]


def test_a_row_range_is_one_run() -> None:
    (r,) = rule("qkv: (* a) d", "{q,k,v}: a d")
    v = view_of(Bound("qkv", r, None, ("q", "k", "v")), 1, {"a": 4, "d": 5})
    piece = compose(v, dense_view("k", [4, 5]))
    assert piece == Piece("qkv", 20, 0, ((20, 1, 1),))
    assert piece.run == 20


def test_too_many_runs_to_prove_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recipe, "MAX_RUNS", 4)
    n = 64
    assert tiles([(k * 3 + j, ((n, 9),)) for k in range(3) for j in (0, 2, 1)], 9 * n)
    with pytest.raises(LayoutError, match="too many separate runs"):
        tiles([(0, ((n, 3),)), (1, ((n, 3),)), (2, ((1, 3), (n // 2, 3))), (2, ((n // 2, 3),))], 3 * n)
