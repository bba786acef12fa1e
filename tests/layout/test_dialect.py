"""Dialects and their variants: combinations of options, words in keys, blocks that differ at the end."""

from __future__ import annotations

import pytest

from vitconv.errors import LayoutError, UsageError
from vitconv.layout.dialect import Dialect, form, layers_of, pattern
from vitconv.layout.rule import Choice, Entry, Option, rule

B = "blocks.{i}."
TRUNK = Choice("trunk", (Option("bare", bind={"t": ""}), Option("inside", bind={"t": "net.{part}.", "part": "vit"})))
SIZE = Choice(
    "end",
    (
        Option("plain", bind={"n": "norm"}),
        Option("wrapped", bind={"n": "norm"}, last={"n": "wrap.norm"}, only={"trunk": ("bare",)}),
    ),
)


def dialect(*entries: tuple[Entry, ...]) -> Dialect:
    return Dialect("trial", "a trial", "this test", "none", tuple(e for t in entries for e in t))


TRIAL = dialect(rule("{t}l.{i}.{n}: d", B + "norm1.weight: d"), (TRUNK, SIZE))


def test_variants_are_the_combinations_that_go_together_the_defaults_first() -> None:
    assert [tuple(v.names.values()) for v in TRIAL.variants] == [
        ("bare", "plain"),
        ("bare", "wrapped"),
        ("inside", "plain"),
    ]


def test_words_are_filled_from_the_outside_in() -> None:
    (item,) = TRIAL.variant({"trunk": "inside"}).items
    assert (item.key, item.layers) == ("net.vit.l.{i}.norm", "all")


def test_a_block_that_differs_at_the_end_becomes_two_items() -> None:
    items = TRIAL.variant({"end": "wrapped"}).items
    assert [(item.key, item.layers) for item in items] == [("l.{i}.norm", "body"), ("l.{i}.wrap.norm", "last")]


def test_options_are_checked_by_name_and_together() -> None:
    with pytest.raises(UsageError, match="trial has no choice 'size'; it has: trunk, end"):
        TRIAL.variant({"size": "b"})
    with pytest.raises(UsageError, match="trial: trunk='outside': expected one of bare, inside"):
        TRIAL.variant({"trunk": "outside"})
    with pytest.raises(UsageError, match="these do not go together: trunk=inside, end=wrapped"):
        TRIAL.variant({"trunk": "inside", "end": "wrapped"})


def test_a_word_that_nothing_binds_is_refused() -> None:
    with pytest.raises(LayoutError, match=r"no choice binds \{where\}"):
        _ = dialect(rule("{where}.w: d", "norm.weight: d")).variants[0].items


@pytest.mark.parametrize(
    ("template", "key", "layer"),
    [
        ("blocks.{i}.w", "blocks.11.w", "11"),
        ("blocks.{i}.w", "blocks.0.w", "0"),
        ("blocks.{i}.w", "blocks.01.w", None),
        ("blocks.{i}.w", "blocks.x.w", None),
        ("blocks.{i}.w", "blocksx1.w", None),
        ("blocks.{i}.w", "a.blocks.1.w", None),
        ("a.{i}.b.{i}.w", "a.3.b.3.w", "3"),
        ("a.{i}.b.{i}.w", "a.3.b.4.w", None),
    ],
)
def test_keys_are_matched_whole_and_every_layer_number_is_one(template: str, key: str, layer: str | None) -> None:
    m = pattern(template).fullmatch(key)
    assert (m and m[1]) == layer
    assert layer is None or form(template) == form(key)


def test_layers() -> None:
    assert [list(layers_of(w, 3)) for w in ("all", "body", "last", "first")] == [[0, 1, 2], [0, 1], [2], [0]]
    assert [list(layers_of(w, 1)) for w in ("all", "body", "last", "first")] == [[0], [], [0], [0]]
    assert [list(layers_of(w, 0)) for w in ("all", "body", "last", "first")] == [[], [], [], []]
