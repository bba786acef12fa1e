"""Rules: lists on one and on both sides, fields, and every inconsistency refused when the rule is written."""

from __future__ import annotations

import pytest

from vitconv.errors import LayoutError
from vitconv.layout.rule import Alias, Const, Tie, alias, const, linear, norm, rule, tie
from vitconv.layout.shape import parse_axes


def test_a_list_of_parts_is_stacked_in_order() -> None:
    (r,) = rule("blocks.{i}.qkv: (* a) d", "blocks.{i}.{q, k,v}: a d")
    assert [p.key for p in r.parts] == ["blocks.{i}.q", "blocks.{i}.k", "blocks.{i}.v"]
    assert r.axes == parse_axes("(* a) d")
    assert all(p.axes == parse_axes("a d") for p in r.parts)
    assert r.per_layer
    assert not r.scanned
    assert r.joined is None


def test_lists_on_both_sides_are_one_rule_per_item() -> None:
    rules = rule("{query,key}.w: a d", "attn.{q,k}.weight: a d", optional=True)
    assert [(r.key, r.parts[0].key, r.optional) for r in rules] == [
        ("query.w", "attn.q.weight", True),
        ("key.w", "attn.k.weight", True),
    ]


def test_a_sum_joins_its_parts_in_order() -> None:
    (r,) = rule("pos: 1 (1+n) d", "embed.pos_cls: d", "embed.pos: n d")
    assert r.joined == 1
    assert [p.key for p in r.parts] == ["embed.pos_cls", "embed.pos"]


def test_layers_on_the_part_side_only_are_stacked() -> None:
    (r,) = rule("w: * d a", "blocks.{i}.attn.q.weight: a d")
    assert r.scanned
    assert not r.per_layer


def test_sugar() -> None:
    assert [str(r) for r in linear("fc", "head", "o d")] == [
        "fc.weight: o d  <->  head.weight: o d",
        "fc.bias: o  <->  head.bias: o",
    ]
    weight, bias = linear("fc", "head", "o d", bias=False)
    assert (weight.optional, bias.optional) == (False, True)
    assert len(linear("fc", "head", "o d", bias=None)) == 1
    assert [str(r) for r in norm("ln", "norm", optional=True)] == [
        "ln.weight: d  <->  norm.weight: d",
        "ln.bias: d  <->  norm.bias: d",
    ]
    assert const("ids: 1 n", "arange") == (Const("ids", parse_axes("1 n"), "arange", "I64", True),)
    assert alias("a.{i}.w", "b.{i}.w") == (Alias("a.{i}.w", "b.{i}.w"),)
    assert tie(["k", "v"], "q") == (Tie(("k", "v"), "q"),)


@pytest.mark.parametrize(
    ("whole", "parts", "says"),
    [
        ("x d", ("y: d",), "the ':' is missing"),
        (": d", ("y: d",), "the key is missing"),
        ("x{i: d", ("y: d",), "this brace is not closed"),
        ("x}i{: d", ("y: d",), "braces do not match"),
        ("{a,b}: d", ("y: d",), "same length on both"),
        ("{a,b}: d", ("{q,k,v}: d",), "same length on both"),
        ("{a,}: d", ("{q,k}: d",), "an item of this list is empty"),
        ("x: d", ("{q,k}: d",), "several parts need a '*' or a '+'"),
        ("x: (* d)", ("y: d",), "one part needs none"),
        ("x: (* d)", ("{q,k}: (* d)",), "'*' belongs to the whole"),
        ("x: (1+n) d", ("y: n d",), "2 terms are joined but there are 1 parts"),
        ("x: (1+n) d", ("y: d", "z: (1+n) d"), "a sum belongs to the whole"),
        ("x: a d", ("y: a",), "not the same elements: y has axes a, the whole gives a d"),
        ("x: a d", ("y: a m",), "not the same elements: y has axes a m, the whole gives a d"),
        ("x: (* a) d", ("{q,k}: a d", "z: d"), "not the same elements: z"),
        ("x: * d", ("blocks.{i}.{a,b}: d",), "takes one part"),
        ("x.{i}: d", ("y: d",), "one tensor for all layers"),
    ],
)
def test_inconsistent_rules_are_refused_when_written(whole: str, parts: tuple[str, ...], says: str) -> None:
    with pytest.raises(LayoutError) as e:
        rule(whole, *parts)
    assert says in str(e.value)


def test_a_caret_points_into_the_side_at_fault() -> None:
    with pytest.raises(LayoutError) as e:
        rule("x: a d", "y: a (d")
    assert str(e.value) == "this group is not closed\n  y: a (d\n       ^"


def test_unknown_layer_filters_and_alias_fields_are_refused() -> None:
    with pytest.raises(LayoutError, match="layers='middle': expected one of all, body, last, first"):
        rule("x.{i}: d", "y.{i}: d", layers="middle")
    with pytest.raises(LayoutError, match="one is per layer, the other is not"):
        alias("a.{i}", "b")
    with pytest.raises(LayoutError, match="fill names 'z'"):
        rule("x: d", "y: d", fill={"z": 0.0})
