"""A network being carried: what a file decodes to, facts that follow, tensors computed and taken away."""

from __future__ import annotations

import numpy as np
import pytest

from vitconv.errors import LayoutError
from vitconv.layout.detect import detect
from vitconv.layout.dialect import Dialect
from vitconv.layout.network import Applied, Made, Network, decode
from vitconv.layout.recipe import View
from vitconv.layout.rule import Entry, rule, tie
from vitconv.layout.semantics import Semantics

B = "blocks.{i}."
SHAPES = {"l.0.qkv": (6, 5), "l.1.qkv": (6, 5)}


def dialect(*entries: tuple[Entry, ...], **more: object) -> Dialect:
    return Dialect("trial", "a trial", "this test", "none", tuple(e for t in entries for e in t), **more)


QKV = rule("l.{i}.qkv: (* a) d", B + "attn.{q,k,v}.weight: a d")


def network(d: Dialect, shapes: dict[str, tuple[int, ...]], facts: Semantics | None = None) -> Network:
    return decode(detect(shapes, [d]), dict.fromkeys(shapes, "BF16"), facts or Semantics())


def test_cells_say_where_their_elements_lie() -> None:
    n = network(dialect(QKV), SHAPES)
    assert len(n.cells) == 6
    k = n.cells["blocks.1.attn.k.weight"]
    assert (k.shape, k.dtype, k.numel) == ((2, 5), "BF16", 10)
    assert k.view == View("l.1.qkv", 10, (((2, 5),), ((5, 1),)))
    assert n.shapes["blocks.0.attn.q.weight"] == (2, 5)


def test_facts_of_the_layout_fill_what_is_unknown_and_several_stay_open() -> None:
    d = dialect(QKV, implies={"kv_normalised": True, "norm_placement": ("pre", "res-post")})
    n = network(d, SHAPES, Semantics(heads=3))
    assert n.facts == Semantics(heads=3, kv_normalised=True)
    assert n.open == {"norm_placement": ("pre", "res-post")}


def test_a_tie_is_read_under_each_of_its_names() -> None:
    d = dialect(rule("l.{i}.k: a d", B + "attn.k.weight: a d"), tie([B + "attn.q.weight"], B + "attn.k.weight"))
    n = network(d, {"l.0.k": (2, 3)})
    assert n.cells["blocks.0.attn.q.weight"].view == n.cells["blocks.0.attn.k.weight"].view


def test_two_tensors_for_one_name_are_refused() -> None:
    d = dialect(QKV, rule("l.{i}.again: a d", B + "attn.q.weight: a d"))
    with pytest.raises(LayoutError, match=r"both l\.0\.qkv and l\.0\.again hold blocks\.0\.attn\.q\.weight"):
        network(d, {**SHAPES, "l.0.again": (2, 5), "l.1.again": (2, 5)})


def test_changes_are_copies() -> None:
    n = network(dialect(QKV), SHAPES)
    name = "blocks.0.attn.q.weight"
    made = Made("ones", (), (2, 5), "BF16", lambda _: np.ones((2, 5)))
    changed = n.with_made(name, made).with_made("norm.weight", made)
    assert changed.cells[name].view.tensor.startswith("=")
    assert len(changed.made) == 2
    assert n.cells[name].view.tensor == "l.0.qkv"
    assert name not in n.without([name]).cells
    assert name in n.cells
    assert [a.edit for a in n.noted(Applied("drop", "gone", False)).log] == ["drop"]
    assert n.log == ()
