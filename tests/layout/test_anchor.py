"""Anchors: every variant needs one of them, and they are keys that few other dialects need."""

from __future__ import annotations

from vitconv.layout.anchor import anchors, forms
from vitconv.layout.dialect import Dialect
from vitconv.layout.rule import Choice, Entry, Option, alias, rule


def dialect(name: str, *entries: tuple[Entry, ...]) -> Dialect:
    return Dialect(name, f"the {name} layout", "this test", "none", tuple(e for t in entries for e in t))


Q = rule("blocks.{i}.q: a d", "blocks.{i}.attn.q.weight: a d")
NORM = rule("norm: d", "norm.weight: d")


def test_a_key_that_one_dialect_needs_is_preferred() -> None:
    own = rule("blocks.{i}.k: a d", "blocks.{i}.attn.k.weight: a d")
    found = anchors([dialect("one", NORM, Q), dialect("two", NORM, Q, own)])
    assert found["two"] == ("blocks.#.k",)
    assert set(found["one"]) <= {"norm", "blocks.#.q"}


def test_every_variant_has_one() -> None:
    mlp = Choice("mlp", (Option("a", rule("up.a: m d", "up: m d")), Option("b", rule("up.b: m d", "up: m d"))))
    either = dialect("either", rule("norm: d", "norm.weight: d", optional=True), (mlp,))
    assert anchors([either]) == {"either": ("up.a", "up.b")}


def test_a_dialect_that_needs_nothing_has_none() -> None:
    loose = Choice("mlp", (Option("a", rule("up.a: m d", "up: m d")), Option("none")))
    assert anchors([dialect("loose", (loose,)), dialect("firm", Q)]) == {"firm": ("blocks.#.q",)}


def test_a_key_that_an_alias_may_stand_for_is_none() -> None:
    tied = dialect("tied", NORM, Q, alias("other.{i}.q", "blocks.{i}.q"))
    assert anchors([tied]) == {"tied": ("norm",)}


def test_numbers_are_one_form() -> None:
    assert forms(["blocks.0.q", "blocks.11.q", "norm"]) == {"blocks.#.q", "norm"}
