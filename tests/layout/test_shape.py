"""Axes: the notation and its errors, sizes, and where each atom lies, compared with numpy's own strides."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitconv.errors import LayoutError
from vitconv.layout.shape import Axis, atoms, parse_axes, places, shape_of, show_axes


def caret_of(error: LayoutError) -> tuple[str, int]:
    """Return the first line of a message and the column of its caret in the text it shows."""
    what, _, mark = str(error).split("\n")
    return what, mark.index("^") - 2


@pytest.mark.parametrize(
    ("text", "axes"),
    [
        ("", ()),
        ("  ", ()),
        ("d", (Axis(("d",)),)),
        ("a d", (Axis(("a",)), Axis(("d",)))),
        ("(h e) d", (Axis(("h", "e")), Axis(("d",)))),
        ("(* a)  d ", (Axis(("*", "a")), Axis(("d",)))),
        ("1 (1+n) d", (Axis(("1",)), Axis(("1", "n"), joined=True), Axis(("d",)))),
        ("1 ( 1 + r + n ) d", (Axis(("1",)), Axis(("1", "r", "n"), joined=True), Axis(("d",)))),
        ("* d", (Axis(("*",)), Axis(("d",)))),
    ],
)
def test_parses(text: str, axes: tuple[Axis, ...]) -> None:
    assert parse_axes(text) == axes


@pytest.mark.parametrize(
    ("text", "at", "what"),
    [
        ("a - d", 2, "unexpected '-'"),
        ("a  %", 3, "unexpected '%'"),
        ("(a (b))", 3, "groups do not nest"),
        ("a b)", 3, "')' outside a group"),
        ("a + b", 2, "'+' outside a group"),
        ("()", 1, "an atom is missing here"),
        ("(a+)", 3, "an atom is missing here"),
        ("(+a)", 1, "joins single atoms"),
        ("(a b+c)", 4, "joins single atoms"),
        ("(a++b)", 3, "joins single atoms"),
        ("(a+b c)", 5, "'+' expected"),
        ("d (a b", 2, "this group is not closed"),
        ("a d a", 4, "axis 'a' stands twice"),
        ("(a d) a", 6, "axis 'a' stands twice"),
        ("(* a) *", 6, "axis '*' stands twice"),
        ("2 d 2", 4, "axis '2' stands twice"),
        ("(a+b) (c+d)", 6, "at most one axis may be a sum"),
    ],
)
def test_faults_point_at_the_place(text: str, at: int, what: str) -> None:
    with pytest.raises(LayoutError) as e:
        parse_axes(text)
    said, column = caret_of(e.value)
    assert what in said
    assert column == at


def test_the_caret_counts_from_the_start_of_the_whole_side() -> None:
    text = "cls_token: 1 (1 d"
    with pytest.raises(LayoutError) as e:
        parse_axes(text, text.index(":") + 1)
    assert str(e.value).split("\n")[1].strip() == text
    assert caret_of(e.value) == ("this group is not closed", 13)


def test_shows_what_it_parses() -> None:
    for text in ("(* a) d", "1 (1+n) d", "d c p q"):
        assert show_axes(parse_axes(text)) == text
    assert show_axes(()) == "(a single number)"


def test_atoms_leave_the_ones_out() -> None:
    assert list(atoms(parse_axes("1 (1+n) (h 2 e) d"))) == ["n", "h", "2", "e", "d"]


@pytest.mark.parametrize(
    ("text", "shape"),
    [("(h e) d", (6, 5)), ("1 (1+n) d", (1, 8, 5)), ("(2 h) d", (4, 5)), ("", ()), ("(* h) d", (8, 5))],
)
def test_shape(text: str, shape: tuple[int, ...]) -> None:
    assert shape_of(parse_axes(text), {"h": 2, "e": 3, "d": 5, "n": 7, "*": 4}) == shape


@st.composite
def products(draw: st.DrawFn) -> tuple[str, dict[str, int]]:
    """Draw axes that are products of fresh atoms, and their sizes."""
    names = iter("abcdefgh")
    groups = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    axes, env = [], {}
    for width in groups:
        atoms_ = [next(names) for _ in range(width)] if sum(groups) <= 8 else [next(names)]
        env |= {x: draw(st.integers(1, 4)) for x in atoms_}
        axes.append(f"({' '.join(atoms_)})" if len(atoms_) > 1 else atoms_[0])
    return " ".join(axes), env


@given(products())
def test_places_are_numpys_strides(case: tuple[str, dict[str, int]]) -> None:
    text, env = case
    axes = parse_axes(text)
    fine = [x for a in axes for x in a.atoms]
    array = np.zeros(shape_of(axes, env), np.uint8).reshape([env[x] for x in fine])
    offset, where = places(axes, env)
    assert offset == 0
    assert where == {x: (n, s) for x, n, s in zip(fine, array.shape, array.strides, strict=True)}


@pytest.mark.parametrize("term", [0, 1, 2])
def test_places_of_a_term_begin_where_numpys_slice_begins(term: int) -> None:
    env = {"r": 3, "n": 4, "d": 5, "k": 2}
    axes = parse_axes("k (1+r+n) d")
    numbers = np.arange(math.prod(shape_of(axes, env))).reshape(shape_of(axes, env))
    cut = np.split(numbers, [1, 4], axis=1)[term]
    offset, where = places(axes, env, term)
    assert offset == cut.flat[0]
    assert where["k"] == (2, 8 * 5)
    assert where["d"] == (5, 1)
    name = (None, "r", "n")[term]
    assert name is None or where[name] == (cut.shape[1], 5)
