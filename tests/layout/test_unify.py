"""Unification: sizes from headers, conflicts with both witnesses, and what only the user can say."""

from __future__ import annotations

import re

import pytest

from vitconv.errors import LayoutError
from vitconv.layout.rule import rule
from vitconv.layout.unify import Bound, unify, unify_parts


def bound(*texts: tuple[str, ...]) -> list[Bound]:
    """Return bound rules written as (whole, part, ...)."""
    return [Bound(r.key, r, None, tuple(p.key for p in r.parts)) for t in texts for r in rule(*t)]


QKV = ("qkv: (* a) d", "{q,k,v}: a d")
POS = ("pos: 1 (1+n) d", "pos_cls: d", "pos: n d")
HEADS = ("kernel: d h e", "q: (h e) d")


def test_solves_products_sums_and_stars_in_any_order() -> None:
    shapes = {"qkv": (18, 4), "pos": (1, 10, 4), "kernel": (4, 2, 3)}
    assert unify(bound(POS, QKV, HEADS), shapes) == {"n": 9, "d": 4, "a": 6, "h": 2, "e": 3}


def test_an_axis_found_late_settles_an_earlier_one() -> None:
    rules = bound(("fused: (h e) d", "w: (h e) d"), ("norm: e", "n: e"))
    assert unify(rules, {"fused": (12, 5), "norm": (4,)}) == {"d": 5, "e": 4, "h": 3}


@pytest.mark.parametrize(
    ("rules", "shapes", "given", "says"),
    [
        ([QKV], {"qkv": (17, 4)}, None, "qkv: axis (* a) has 17, which 3 does not divide (axis a)"),
        (
            [QKV, POS],
            {"qkv": (18, 4), "pos": (1, 10, 5)},
            None,
            "axis d=4 (from qkv), but pos has 5 where that gives 4",
        ),
        ([QKV], {"qkv": (18, 4)}, {"a": 5}, "axis a=5 was given, but qkv has 18 where that gives 15"),
        ([POS], {"pos": (2, 10, 4)}, None, "pos: 2 where the layout has 1"),
        ([POS], {"pos": (1, 1, 4)}, None, "pos: axis (1+n) has 1, which leaves nothing for n"),
        ([QKV], {"qkv": (18,)}, None, "qkv has shape [18], but (* a) d needs 2 axes"),
        ([("s:", "t:")], {"s": (1,)}, None, "s has shape [1], but (a single number) needs no axis"),
        ([HEADS], {"kernel": (4, 2)}, None, "kernel has shape [4, 2], but d h e needs 3 axes"),
    ],
)
def test_conflicts_name_the_witnesses(
    rules: list[tuple[str, ...]], shapes: dict, given: dict | None, says: str
) -> None:
    with pytest.raises(LayoutError, match=re.escape(says)):
        unify(bound(*rules), shapes, given)


def test_what_no_tensor_says_is_asked_for() -> None:
    rules = bound(("w: (h e) d", "q: (h e) d"))
    with pytest.raises(LayoutError, match=r"w: axis \(h e\) has 12.*sizes of h and e are not in the file.*--axis h="):
        unify(rules, {"w": (12, 5)})
    assert unify(rules, {"w": (12, 5)}, {"h": 3}) == {"h": 3, "d": 5, "e": 4}
    with pytest.raises(LayoutError, match=r"which 5 does not divide \(axis e\)"):
        unify(rules, {"w": (12, 5)}, {"h": 5})


def test_a_whole_that_stacks_the_layers_solves_the_depth() -> None:
    rules = [Bound("w", *rule("w: * d a", "blocks.{i}.q: a d"), None, ())]
    assert unify(rules, {"w": (7, 4, 6)}) == {"i": 7, "d": 4, "a": 6}


def test_from_the_parts_heads_are_asked_for() -> None:
    with pytest.raises(LayoutError, match=r"q: axis \(h e\) has 6.*--axis h="):
        unify_parts(bound(HEADS), {"q": (6, 4)})
    assert unify_parts(bound(HEADS), {"q": (6, 4)}, {"h": 2}) == {"h": 2, "d": 4, "e": 3}
    assert unify_parts(bound(QKV, POS), {"q": (6, 4), "v": (6, 4)}) == {"a": 6, "d": 4}


def test_from_the_parts_conflicts_name_the_parts() -> None:
    with pytest.raises(LayoutError, match=re.escape("axis a=6 (from q), but k has 7 where that gives 6")):
        unify_parts(bound(QKV), {"q": (6, 4), "k": (7, 4), "v": (6, 4)})
