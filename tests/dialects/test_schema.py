"""What every variant of every dialect must keep: real canonical tensors, each key and each tensor once."""

import re
from collections import Counter

import pytest

from vitconv.errors import LayoutError
from vitconv.layout.canonical import SCHEMA
from vitconv.layout.dialect import Dialect, Variant
from vitconv.layout.encode import explain_residue
from vitconv.layout.rule import Choice, Option, Rule, rule
from vitconv.layout.shape import atoms
from vitconv.registry import DIALECTS, load_all

ALL = load_all(DIALECTS, plugins=False)
CASES = [d for d in ALL.values() if d.family == "plain"]


def each(dialect: Dialect) -> list[Variant]:
    return list(dialect.variants)


def faults(v: Variant) -> list[str]:
    """Return what is wrong with one variant, in words."""
    out = []
    keys: Counter[tuple[str, str]] = Counter()
    claims: Counter[tuple[str, str]] = Counter()
    for item in v.items:
        for layer in ("body", "last") if item.layers == "all" else (item.layers,):
            keys[item.key, layer] += 1
            for part in item.parts if isinstance(item.entry, Rule) else ():
                claims[part, layer] += 1
        if not isinstance(item.entry, Rule):
            continue
        for name, part in zip(item.parts, item.entry.parts, strict=True):
            if name not in SCHEMA:
                out.append(f"{name} is no canonical tensor")
                continue
            # d2 is a second width: that of a dense layer between the pooled token and the head
            # a, the attention width, may be seen as h heads of width e, and n, the grid, as rows and columns
            seen = " ".join(atoms(part.axes)).replace("rows columns", "n").replace("h e", "a")
            if name.startswith("pool."):
                seen = seen.replace("a", "u")
            here = [x.rstrip("2") for x in seen.split()]
            there = [x.rstrip("2") for x in SCHEMA[name].axes]
            if name == "coca.q.weight" and v.taken.get("last_norm") == "attentional-pooler-fused":
                # The pooler is as wide as the network.
                there = ["v", "d"]
            if here != there:
                out.append(f"{name} has axes {here}, the schema {there}")
    out += [f"{key} is written twice ({layer})" for (key, layer), n in keys.items() if n > 1]
    out += [f"{name} is claimed twice ({layer})" for (name, layer), n in claims.items() if n > 1]
    claimed = {part for part, _ in claims}
    for t in v.ties:
        out += [f"tie of {name}, which is no canonical tensor" for name in (*t.parts, t.of) if name not in SCHEMA]
        out += [f"{name} is tied and has a rule" for name in t.parts if name in claimed]
    return out


@pytest.mark.parametrize("dialect", CASES, ids=lambda d: d.name)
def test_every_variant_is_sound(dialect: Dialect) -> None:
    assert each(dialect)
    bad = {f"{v.names}": found for v in each(dialect) if (found := faults(v))}
    assert bad == {}


@pytest.mark.parametrize("dialect", CASES, ids=lambda d: d.name)
def test_every_option_is_in_some_variant(dialect: Dialect) -> None:
    named = {(c.name, o.name) for c in dialect.choices for o in c.options}
    every = [*each(dialect), *dialect.foreign]
    assert named == {pair for v in every for pair in v.taken.items()}
    assert len({tuple(v.taken.items()) for v in every}) == len(every)


@pytest.mark.parametrize("dialect", CASES, ids=lambda d: d.name)
def test_conditions_speak_of_canonical_tensors(dialect: Dialect) -> None:
    for choice in dialect.choices:
        for option in choice.options:
            assert set(option.needs + option.without) <= set(SCHEMA)
            assert all(c in {x.name for x in dialect.choices} for c in option.only)


@pytest.mark.parametrize("dialect", CASES, ids=lambda d: d.name)
def test_every_reason_can_apply(dialect: Dialect) -> None:
    """A pattern of `cannot` speaks of some canonical tensor that some variant has no place for."""
    said = [{p for item in v.items for p in item.parts} | {p for t in v.ties for p in t.parts} for v in each(dialect)]
    for pattern in dialect.cannot:
        assert any(re.search(pattern, name) and any(name not in s for s in said) for name in SCHEMA), pattern


@pytest.mark.parametrize("dialect", CASES, ids=lambda d: d.name)
def test_every_tensor_without_a_place_has_a_reason(dialect: Dialect) -> None:
    said = [{p for item in v.items for p in item.parts} | {p for t in v.ties for p in t.parts} for v in each(dialect)]
    nowhere = [name for name in SCHEMA if not any(name in s for s in said)]
    # What the dialect does not say, the schema does.
    assert [line for n in nowhere if (line := explain_residue(dialect, (n,))[0]).endswith(n)] == []


@pytest.mark.parametrize("dialect", CASES, ids=lambda d: d.name)
def test_facts_are_facts(dialect: Dialect) -> None:
    from vitconv.layout.semantics import fact_value

    for v in each(dialect):
        for name, value in v.implies.items():
            for one in value if isinstance(value, tuple) else (value,):
                assert fact_value(name, one) == one


def planted(*entries: Rule) -> Dialect:
    return Dialect("x", "x", "x", "x", entries)


@pytest.mark.parametrize(
    ("dialect", "says"),
    [
        (planted(*rule("a: d", "norm.wight: d")), "no canonical tensor"),
        (planted(*rule("a: o", "norm.weight: o")), "has axes"),
        (planted(*rule("a: d", "norm.weight: d"), *rule("a: d", "norm.bias: d")), "written twice"),
        (planted(*rule("a: d", "norm.weight: d"), *rule("b: d", "norm.weight: d")), "claimed twice"),
        (planted(*rule("a: m d", "blocks.{i}.mlp.down.weight: d m".replace("{i}", "0"))), "no canonical tensor"),
    ],
    ids=["misspelt", "other-axis", "two-for-a-key", "two-for-a-tensor", "concrete-layer"],
)
def test_a_planted_fault_is_found(dialect: Dialect, says: str) -> None:
    assert any(says in f for v in each(dialect) for f in faults(v))


def test_words_of_the_last_layer_split_a_rule_only_where_they_differ() -> None:
    option = Option("x", bind={"a": "one", "b": "same"}, last={"a": "two"})
    entries = (
        *rule("{i}.{a}: d", "blocks.{i}.norm1.weight: d"),
        *rule("{i}.{b}: d", "blocks.{i}.norm1.bias: d"),
        Choice("c", (option,)),
    )
    (v,) = Dialect("x", "x", "x", "x", entries).variants
    assert [(i.key, i.layers) for i in v.items] == [
        ("{i}.one", "body"),
        ("{i}.two", "last"),
        ("{i}.same", "all"),
    ]


def test_an_unbound_word_is_an_error() -> None:
    (v,) = planted(*rule("{word}.a: d", "norm.weight: d")).variants
    with pytest.raises(LayoutError, match="no choice binds"):
        _ = v.items
