"""Saying a network in a dialect: the variant with the least left over, what is made up, what does not go together."""

from __future__ import annotations

import pytest

from vitconv.errors import Refused, UsageError
from vitconv.layout.dialect import Dialect
from vitconv.layout.encode import Encoding, contradictions, encode, explain_residue, undecided
from vitconv.layout.rule import Choice, Entry, Option, alias, const, linear, norm, rule

B = "blocks.{i}."
UP = rule(B + "up: m d", B + "mlp.up.weight: m d")
MLP = Choice(
    "mlp",
    (
        Option("plain", UP),
        Option("gated", (*UP, *rule(B + "gate: m d", B + "mlp.gate.weight: m d"))),
        Option("packed", rule(B + "both: (* m) d", B + "mlp.{gate,up}.weight: m d")),
    ),
)


def dialect(*entries: tuple[Entry, ...], **more: object) -> Dialect:
    return Dialect("trial", "the trial layout", "this test", "none", tuple(e for t in entries for e in t), **more)


def names(*templates: str, depth: int = 2) -> dict[str, tuple[int, ...]]:
    return {t.replace("{i}", str(i)): (4,) for t in templates for i in range(depth)}


PLAIN = names(B + "mlp.up.weight")
GATED = names(B + "mlp.up.weight", B + "mlp.gate.weight")


def said(d: Dialect, have: dict[str, tuple[int, ...]], **more: object) -> Encoding:
    return encode(d, have, 2, more.pop("facts", {}), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(("have", "option"), [(PLAIN, "plain"), (GATED, "gated")])
def test_the_first_variant_that_leaves_the_least(have: dict[str, tuple[int, ...]], option: str) -> None:
    e = said(dialect((MLP,)), have)
    assert e.variant.names == {"mlp": option}
    assert not e.residue
    assert not e.missing


def test_a_wanted_option_is_taken_with_what_it_leaves_and_lacks() -> None:
    e = said(dialect((MLP,)), GATED, wanted={"mlp": "plain"})
    assert e.residue == ("blocks.0.mlp.gate.weight", "blocks.1.mlp.gate.weight")
    e = said(dialect((MLP,)), PLAIN, wanted={"mlp": "packed"})
    assert e.missing == {f"blocks.{i}.both": (f"blocks.{i}.mlp.gate.weight",) for i in range(2)}
    with pytest.raises(UsageError, match="trial has no choice 'size'; it has: mlp"):
        said(dialect((MLP,)), PLAIN, wanted={"size": "plain"})
    with pytest.raises(UsageError, match="mlp='big': expected one of plain, gated, packed"):
        said(dialect((MLP,)), PLAIN, wanted={"mlp": "big"})


def test_leaving_a_tensor_over_is_worse_than_making_one_up() -> None:
    bias = rule(B + "b: (* a)", B + "attn.{q,k}.bias: a", fill={B + "attn.k.bias": 0.0})
    kind = Choice("bias", (Option("none"), Option("all", bias)))
    e = said(dialect(UP, (kind,)), {**PLAIN, **names(B + "attn.q.bias")})
    assert e.variant.names == {"bias": "all"}
    assert e.fills == {"blocks.0.attn.k.bias": 0.0, "blocks.1.attn.k.bias": 0.0}
    assert said(dialect(UP, (kind,)), PLAIN).variant.names == {"bias": "none"}


def test_lacking_tensors_are_worse_than_anything() -> None:
    kind = Choice("kind", (Option("normed", norm(B + "n", B + "norm1")), Option("bare")))
    e = said(dialect(UP, (kind,)), {**PLAIN, **names(B + "norm1.weight")})
    assert e.variant.names == {"kind": "bare"}
    assert e.residue == ("blocks.0.norm1.weight", "blocks.1.norm1.weight")


def test_second_names_and_constants_are_written() -> None:
    d = dialect(UP, alias("again.{i}", B + "up"), const("ids: 1 n", "arange", optional=False), const("old: n", 0))
    e = said(d, PLAIN)
    assert e.copies == {"again.0": "blocks.0.up", "again.1": "blocks.1.up"}
    assert list(e.consts) == ["ids"]


def test_facts_choose_and_contradict() -> None:
    kind = Choice(
        "norm",
        (
            Option("pre", implies={"norm_placement": "pre"}),
            Option("post", implies={"norm_placement": ("post", "deepnorm")}),
        ),
    )
    d = dialect(UP, (kind,), implies={"kv_normalised": True})
    assert said(d, PLAIN, facts={"norm_placement": "deepnorm"}).variant.names == {"norm": "post"}
    assert said(d, PLAIN, facts={"norm_placement": ("res-post", "post")}).variant.names == {"norm": "post"}
    with pytest.raises(Refused) as e:
        said(d, PLAIN, facts={"norm_placement": "res-post"})
    assert "norm placement: res-post here, but the trial layout computes pre or deepnorm or post" in str(e.value)
    pre = d.variant({"norm": "pre"})
    assert contradictions(pre, {"norm_placement": "post"}) == {"norm_placement": ("post", "pre")}
    assert contradictions(pre, {}) == {}
    assert undecided(pre, {"norm_placement": "pre"}) == {"kv_normalised": True}


def test_a_group_of_optional_tensors_is_written_as_a_whole() -> None:
    d = dialect(UP, linear("head", "head", "o d", optional=True))
    assert said(d, PLAIN).missing == {}
    assert said(d, {**PLAIN, "head.weight": (3, 4)}).missing == {"head.bias": ("head.bias",)}


def test_what_is_left_over_is_explained_once_per_reason() -> None:
    d = dialect(UP, cannot={r"\.ls[12]$": "LayerScale"})
    left = ("blocks.0.ls1", "blocks.0.ls2", "blocks.1.ls1", "blocks.1.ls2", "embed.cls")
    assert explain_residue(d, left) == [
        "blocks.{0..1}.ls1, blocks.{0..1}.ls2: trial has no place for LayerScale",
        "embed.cls: trial has no place for class token",
    ]


def test_what_a_fact_keeps_from_its_place_is_explained_by_the_fact() -> None:
    gated = Option(
        "gated", linear("blocks.{i}.gate", "blocks.{i}.mlp.gate", "m d", bias=False), implies={"activation": "silu"}
    )
    d = dialect(UP, (Choice("mlp", (Option("plain"), gated)),))
    left = ("blocks.0.mlp.gate.weight",)
    (line,) = explain_residue(d, left, {"activation": "gelu"})
    assert line.endswith("MLP, gate (the activated half) and activation=gelu (beside it silu is computed)")
    assert explain_residue(d, left, {"activation": "silu"})[0].endswith("the activated half)")
