"""Matching a dialect against names and shapes: what may be absent, what stands in, and how keys are collapsed."""

from __future__ import annotations

import pytest

from vitconv.layout.dialect import Dialect
from vitconv.layout.header import Header
from vitconv.layout.match import Match, collapse, readings
from vitconv.layout.rule import Choice, Entry, Option, alias, const, norm, rule

B = "blocks.{i}."
QKV = rule(B + "qkv: (* a) d", B + "attn.{q,k,v}.weight: a d")


def dialect(*entries: tuple[Entry, ...], **more: object) -> Dialect:
    return Dialect("trial", "a trial layout", "this test", "none", tuple(e for t in entries for e in t), **more)


def reading(d: Dialect, shapes: dict[str, tuple[int, ...]], **more: object) -> Match:
    (m,) = readings(d, Header(shapes), **more)
    return m


def qkv(depth: int) -> dict[str, tuple[int, ...]]:
    return {f"blocks.{i}.qkv": (9, 4) for i in range(depth)}


def test_an_optional_tensor_is_in_all_layers_or_in_none() -> None:
    d = dialect(QKV, rule(B + "ls: d", B + "ls1: d", optional=True))
    assert reading(d, qkv(3)).fits
    assert reading(d, {**qkv(3), **{f"blocks.{i}.ls": (4,) for i in range(3)}}).fits
    m = reading(d, {**qkv(3), "blocks.1.ls": (4,)})
    assert not m.fits
    assert m.missing == ("blocks.0.ls", "blocks.2.ls")


def test_a_group_is_there_as_a_whole_or_not_at_all() -> None:
    d = dialect(QKV, norm(B + "n", B + "norm1", optional=True))
    weights = {f"blocks.{i}.n.weight": (4,) for i in range(2)}
    assert reading(d, qkv(2)).fits
    assert reading(d, {**qkv(2), **weights}).missing == ("blocks.0.n.bias", "blocks.1.n.bias")


def test_a_layer_in_between_is_missing() -> None:
    shapes = {k: s for k, s in qkv(4).items() if k != "blocks.2.qkv"}
    shapes |= {f"blocks.{i}.n": (4,) for i in range(4)}
    d = dialect(QKV, rule(B + "n: d", B + "norm1.weight: d"))
    assert reading(d, shapes).missing == ("blocks.2.qkv",)


def test_layer_numbers_are_plain_numbers() -> None:
    m = reading(dialect(QKV), {**qkv(2), "blocks.02.qkv": (9, 4)})
    assert m.unknown == ("blocks.02.qkv",)


def test_an_absurd_layer_number_costs_nothing() -> None:
    m = reading(dialect(QKV), {**qkv(2), "blocks.999999999999.qkv": (9, 4)})
    assert m.unknown == ("blocks.999999999999.qkv",)
    assert m.depth == 2


@pytest.mark.parametrize(
    ("layers", "where"), [("first", [0]), ("last", [3]), ("body", [0, 1, 2]), ("all", [0, 1, 2, 3])]
)
def test_layer_filters(layers: str, where: list[int]) -> None:
    d = dialect(QKV, rule(B + "n: d", B + "norm1.weight: d", layers=layers))
    assert reading(d, {**qkv(4), **{f"blocks.{i}.n": (4,) for i in where}}).fits
    odd = {0, 1, 2, 3} - set(where) or {0}
    m = reading(d, {**qkv(4), **{f"blocks.{i}.n": (4,) for i in odd}})
    assert not m.fits
    assert m.missing == tuple(f"blocks.{i}.n" for i in where if i not in odd)


def test_an_alias_stands_in_and_must_have_the_shape() -> None:
    d = dialect(QKV, alias("again.{i}", B + "qkv"))
    both = {**qkv(2), "again.0": (9, 4), "again.1": (9, 4)}
    assert reading(d, both).copies == {"again.0": "blocks.0.qkv", "again.1": "blocks.1.qkv"}
    alone = reading(d, {"again.0": (9, 4), "again.1": (9, 4)})
    assert alone.fits
    assert [b.key for b in alone.bound] == ["again.0", "again.1"]
    m = reading(d, {**both, "again.1": (3, 12)})
    assert m.conflict == "again.1 has another shape than blocks.1.qkv, of which it must be a copy"


@pytest.mark.parametrize("kept", ["one", "two"])
def test_either_of_two_aliases_stands_in(kept: str) -> None:
    d = dialect(QKV, alias("one.{i}", B + "qkv"), alias("two.{i}", B + "qkv"))
    m = reading(d, {f"{kept}.0": (9, 4), f"{kept}.1": (9, 4)})
    assert m.fits
    assert [b.key for b in m.bound] == [f"{kept}.0", f"{kept}.1"]
    both = reading(d, {f"{x}.{i}": (9, 4) for x in ("one", "two") for i in range(2)})
    assert both.fits
    assert both.copies == {"two.0": "one.0", "two.1": "one.1"}


@pytest.mark.parametrize("order", [("with", "without"), ("without", "with")])
def test_an_alias_of_one_option_does_not_stand_in_under_another(order: tuple[str, str]) -> None:
    """The variants of a dialect share what was looked up, but not this."""
    options = {
        "with": Option("with", alias("again.{i}", B + "qkv")),
        "without": Option("without", rule("again.{i}: (* m) d", B + "mlp.{gate,up}.weight: m d")),
    }
    d = dialect(QKV, (Choice("second", tuple(options[name] for name in order)),))
    m = reading(d, {"again.0": (6, 4), "again.1": (6, 4), **qkv(2)}, wanted={"second": "without"})
    assert m.fits
    assert [b.rule.parts[0].key for b in m.bound if b.key == "again.0"] == ["blocks.{i}.mlp.gate.weight"]
    (m,) = readings(d, Header({"again.0": (9, 4)}))
    assert m.fits
    assert m.variant.names == {"second": "with"}


def test_needs_and_without_decide_between_options() -> None:
    kind = Choice(
        "kind",
        (
            Option("gated", rule(B + "g: m d", B + "mlp.gate.weight: m d"), needs=(B + "norm1.weight",)),
            Option("plain", rule(B + "g: m d", B + "mlp.up.weight: m d"), without=(B + "norm1.weight",)),
        ),
    )
    d = dialect(QKV, rule(B + "n: d", B + "norm1.weight: d", optional=True), (kind,))
    base = {**qkv(2), **{f"blocks.{i}.g": (5, 4) for i in range(2)}}
    assert reading(d, base).variant.names == {"kind": "plain"}
    assert reading(d, {**base, "blocks.0.n": (4,), "blocks.1.n": (4,)}).variant.names == {"kind": "gated"}
    assert not reading(d, base, wanted={"kind": "gated"}).fits


def test_shapes_that_disagree_are_a_conflict_with_both_witnesses() -> None:
    m = reading(dialect(QKV), {**qkv(2), "blocks.1.qkv": (9, 5)})
    assert not m.fits
    assert m.conflict == "axis d=4 (from blocks.0.qkv), but blocks.1.qkv has 5 where that gives 4"


def test_constants_are_explained_and_kept_for_comparison() -> None:
    d = dialect(QKV, const("ids: 1 n", "arange"), rule("pos: n d", "embed.pos: n d"))
    m = reading(d, {**qkv(1), "ids": (1, 7), "pos": (7, 4)})
    assert m.fits
    assert list(m.consts) == ["ids"]
    assert reading(d, {**qkv(1), "pos": (7, 4)}).fits


@pytest.mark.parametrize(
    ("rows", "said"),
    [(17, {"class"}), (16, {"patches"}), (9, {"class", "patches"}), (12, {"class", "patches"})],
)
def test_a_square_grid_decides_and_a_doubtful_one_does_not(rows: int, said: set[str]) -> None:
    """9 rows are 3x3, or a class row and 2x4: asked. 12 rows are neither: asked."""
    position = Choice(
        "position",
        (
            Option("class", rule("pos: (1+n) d", "embed.pos_cls: d", "embed.pos: n d")),
            Option("patches", rule("pos: n d", "embed.pos: n d")),
        ),
        square="n",
    )
    found = readings(dialect(QKV, (position,)), Header({**qkv(1), "pos": (rows, 4)}))
    assert {m.variant.names["position"] for m in found} == said
    if len(said) == 1:
        assert "square grid" in found[0].notes[0]
    told = readings(dialect(QKV, (position,)), Header({**qkv(1), "pos": (rows, 4)}), facts={"grid": (1, rows - 1)})
    assert [m.variant.names["position"] for m in told] == ["class"]


@pytest.mark.parametrize(
    ("keys", "collapsed"),
    [
        ([], []),
        (["a"], ["a"]),
        (["b.0.x", "b.1.x", "b.2.x"], ["b.{0..2}.x"]),
        (["b.0.x", "b.2.x", "b.3.x", "b.7.x"], ["b.{0,2..3,7}.x"]),
        (["b.4.x"], ["b.4.x"]),
        (["b.0.x", "b.1.x", "b.0.y"], ["b.{0..1}.x", "b.0.y"]),
        (["encoder_layer_0.x", "encoder_layer_1.x"], ["encoder_layer_{0..1}.x"]),
        (["fc1.weight", "fc2.weight"], ["fc1.weight", "fc2.weight"]),
    ],
)
def test_collapse(keys: list[str], collapsed: list[str]) -> None:
    assert collapse(keys) == collapsed
