"""Plans and their proof: each planted fault in a plan is caught before a byte is read; refusals say why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from vitconv.errors import LayoutError, Refused
from vitconv.layout.describe import describe, residue_lines
from vitconv.layout.detect import detect
from vitconv.layout.dialect import Dialect
from vitconv.layout.network import Applied, Network, decode
from vitconv.layout.plan import Plan, plan
from vitconv.layout.proof import prove
from vitconv.layout.recipe import Piece
from vitconv.layout.rule import Choice, Option, norm, rule, tie
from vitconv.layout.semantics import Semantics

B = "blocks.{i}."


def dialect(name: str, *entries: object, **more: object) -> Dialect:
    return Dialect(name, f"the {name} layout", "this test", "none", tuple(e for t in entries for e in t), **more)


QKV = rule(B + "qkv: (* a) d", B + "attn.{q,k,v}.weight: a d")
APART = rule(B + "{q,k,v}: a d", B + "attn.{q,k,v}.weight: a d")
POS = rule("pos: (1+n) d", "embed.pos_cls: d", "embed.pos: n d")
LS = rule(B + "ls: d", B + "ls1: d", optional=True)
FUSED = dialect("fused", QKV, POS, LS)
SPLIT = dialect("split", APART, POS, LS)
SHAPES = {
    "pos": (5, 4),
    **{f"blocks.{i}.qkv": (9, 4) for i in range(2)},
    **{f"blocks.{i}.ls": (4,) for i in range(2)},
}


def network(facts: Semantics | None = None, dtypes: dict[str, str] | None = None) -> tuple[object, Network]:
    match = detect(SHAPES, [FUSED])
    return match, decode(match, {**dict.fromkeys(SHAPES, "F32"), **(dtypes or {})}, facts or Semantics())


def planned(target: Dialect, **more: object) -> Plan:
    return plan(*network(), target, **more)


@pytest.mark.parametrize("target", [FUSED, SPLIT], ids=["fused", "split"])
def test_counts_every_element(target: Dialect) -> None:
    assert prove(planned(target)) == 5 * 4 + 2 * 9 * 4 + 2 * 4


def edit_piece(key: str, change: Callable[[Piece], Piece]) -> Callable[[Plan], Plan]:
    def spoil(p: Plan) -> Plan:
        targets = [replace(t, pieces=(change(t.pieces[0]), *t.pieces[1:])) if t.key == key else t for t in p.targets]
        return replace(p, targets=tuple(targets))

    return spoil


def drop_target(p: Plan) -> Plan:
    return replace(p, targets=tuple(t for t in p.targets if t.key != "blocks.1.ls"))


def swap_sources(p: Plan) -> Plan:
    """Swap what two targets of one shape are taken from."""
    by_key = {t.key: t for t in p.targets}
    a, b = by_key["blocks.0.k"], by_key["blocks.0.v"]
    by_key |= {a.key: replace(a, pieces=b.pieces), b.key: replace(b, pieces=a.pieces)}
    return replace(p, targets=tuple(by_key.values()))


def swap_cells(p: Plan) -> Plan:
    """Swap two canonical tensors where they are read, so that both sides of the plan agree about the fault."""
    cells = dict(p.network.cells)
    q, k = "blocks.0.attn.q.weight", "blocks.0.attn.k.weight"
    cells[q], cells[k] = replace(cells[q], view=cells[k].view), replace(cells[k], view=cells[q].view)
    return plan(p.source, replace(p.network, cells=cells), p.target.variant.dialect)


def forget_cell(p: Plan) -> Plan:
    return plan(p.source, p.network.without(["blocks.1.ls1", "blocks.0.ls1"]), p.target.variant.dialect)


def longer_whole(p: Plan) -> Plan:
    return replace(p, source=replace(p.source, sizes={**p.source.sizes, "n": 9}))


FAULTS: dict[str, tuple[Callable[[Plan], Plan], str]] = {
    "element dropped": (edit_piece("pos", lambda x: replace(x, dims=((19, 1, 1),))), "does not fill pos exactly once"),
    "element twice": (edit_piece("pos", lambda x: replace(x, dims=((21, 1, 1),))), "does not fill pos exactly once"),
    "piece too late": (edit_piece("pos", lambda x: replace(x, dst=1)), "does not fill pos exactly once"),
    "wrong stride": (
        edit_piece("pos", lambda x: replace(x, dims=((5, 4, 4), (4, 2, 1)))),
        "does not come back from pos",
    ),
    "read too late": (edit_piece("blocks.1.ls", lambda x: replace(x, src=1)), "does not come back from blocks.1.ls"),
    "other tensor": (edit_piece("blocks.1.ls", lambda x: replace(x, source="blocks.0.ls")), "does not come back"),
    "tensor not written": (drop_target, r"the plan forgets blocks\.1\.ls1"),
    "tensor not carried": (forget_cell, r"the plan forgets blocks\.\{0\.\.1\}\.ls1"),
    "targets swapped": (swap_sources, r"does not come back from blocks\.0\.[kv]"),
    "parts swapped": (swap_cells, r"blocks\.0\.attn\.[qk]\.weight is not taken from where it lies in blocks\.0\.qkv"),
    "source longer than its parts": (longer_whole, "is not taken from where it lies in pos"),
}


@pytest.mark.parametrize(("spoil", "says"), FAULTS.values(), ids=FAULTS.keys())
def test_a_planted_fault_is_caught(spoil: Callable[[Plan], Plan], says: str) -> None:
    p = planned(SPLIT)
    prove(p)
    with pytest.raises(LayoutError, match=says):
        prove(spoil(p))


def test_what_an_edit_took_away_and_said_is_not_forgotten() -> None:
    p = planned(SPLIT)
    gone = ("blocks.0.ls1", "blocks.1.ls1")
    edited = p.network.without(list(gone)).noted(Applied("drop", "gone", False, gone))
    assert prove(plan(p.source, edited, SPLIT)) == 100


def test_residue_is_named_with_the_targets_reason() -> None:
    p = planned(dialect("bare", APART, POS, cannot={r"\.ls1$": "LayerScale"}))
    prove(p)
    assert [c.name for c in p.residue] == ["blocks.0.ls1", "blocks.1.ls1"]
    assert residue_lines(p) == ["blocks.{0..1}.ls1: bare has no place for LayerScale"]


def test_lacking_tensors_are_named_once_for_all_layers() -> None:
    with pytest.raises(Refused) as e:
        planned(dialect("normed", APART, POS, LS, norm(B + "n", B + "norm1")))
    assert "to write: blocks.{0..1}.n.weight, blocks.{0..1}.n.bias" in str(e.value)
    assert "lacking: blocks.{0..1}.norm1.weight, blocks.{0..1}.norm1.bias" in str(e.value)
    assert "--edit fill:" in str(e.value)


def test_joining_different_dtypes_is_refused() -> None:
    match = detect({k: s for k, s in SHAPES.items() if "ls" not in k}, [FUSED])
    parts = decode(match, dict.fromkeys(SHAPES, "F32"), Semantics())
    odd = {**parts.cells, "embed.pos_cls": replace(parts.cells["embed.pos_cls"], dtype="BF16")}
    with pytest.raises(Refused, match=r"pos joins .*embed\.pos_cls BF16, embed\.pos F32.*--dtype"):
        plan(match, replace(parts, cells=odd), SPLIT)


def test_sizes_that_the_target_cannot_hold_are_refused() -> None:
    with pytest.raises(Refused, match=r"narrow cannot be written: axis a=3, but narrow holds only .* equals d=4"):
        planned(dialect("narrow", APART, POS, LS, equal=(("a", "d"),)))
    heads = dialect("heads", rule(B + "{q,k,v}: d h e", B + "attn.{q,k,v}.weight: (h e) d"), POS, LS)
    with pytest.raises(Refused, match=r"heads cannot be written: .*--axis h="):
        planned(heads)
    assert prove(planned(heads, given={"h": 3})) == 100
    with pytest.raises(Refused, match="which 2 does not divide"):
        planned(heads, given={"h": 2})


def test_a_fill_is_made_up_and_said() -> None:
    fused = rule(B + "b: (* a)", B + "attn.{q,k,v}.bias: a", fill={B + "attn.k.bias": 0.0})
    qv = rule(B + "{q,v}_bias: a", B + "attn.{q,v}.bias: a")
    shapes = {**SHAPES, **{f"blocks.{i}.{x}_bias": (3,) for i in range(2) for x in "qv"}}
    match = detect(shapes, [dialect("beit", QKV, POS, LS, qv)])
    p = plan(match, decode(match, dict.fromkeys(shapes, "F16"), Semantics()), dialect("whole", QKV, POS, LS, fused))
    prove(p)
    assert p.target.fills == {"blocks.0.attn.k.bias": 0.0, "blocks.1.attn.k.bias": 0.0}
    assert not p.byte_copy
    (made,) = {m.label for m in p.network.made.values()}
    assert made == "filled with 0"
    assert [(r["to"], r["how"]) for r in describe(p) if "filled" in r["how"]] == [("blocks.{0..1}.b", "filled with 0")]


def test_a_tie_is_compared_and_one_without_its_tensor_is_left_over() -> None:
    tied = dialect("tied", rule(B + "k: a d", B + "attn.k.weight: a d"), POS, LS)
    tied = replace(tied, entries=(*tied.entries, *tie([B + "attn.q.weight", B + "attn.v.weight"], B + "attn.k.weight")))
    p = planned(tied)
    prove(p)
    assert p.equal[:2] == (
        ("blocks.0.attn.q.weight", "blocks.0.attn.k.weight"),
        ("blocks.0.attn.v.weight", "blocks.0.attn.k.weight"),
    )
    match, net = network()
    loose = replace(tied, entries=(*tied.entries[1:], *rule(B + "k: a d", B + "attn.k.weight: a d", optional=True)))
    gone = ["blocks.0.attn.k.weight", "blocks.1.attn.k.weight"]
    p = plan(match, net.without(gone).noted(Applied("drop", "gone", False, tuple(gone))), loose)
    prove(p)
    assert {c.name for c in p.residue} == {f"blocks.{i}.attn.{x}.weight" for i in range(2) for x in "qv"}


def test_an_optional_tensor_of_some_layers_only_is_not_written_half() -> None:
    match, net = network()
    with pytest.raises(Refused, match=r"lacking: blocks\.1\.ls1"):
        plan(match, net.without(["blocks.1.ls1"]), SPLIT)


def test_conditions_of_options_hold_for_what_is_written() -> None:
    strict = Choice("kind", (Option("plain", without=(B + "ls1",)), Option("normed", needs=(B + "norm1.weight",))))
    with pytest.raises(Refused, match=r"strict holds no such network:\n  .*plain.* needs no blocks\.\{i\}\.ls1"):
        planned(dialect("strict", APART, POS, LS, (strict,)))


def test_facts_that_contradict_or_are_open() -> None:
    target = dialect("post-only", APART, POS, LS, implies={"norm_placement": "post"})
    with pytest.raises(Refused, match=r"norm placement.*post"):
        plan(*network(), target)
    with pytest.raises(Refused, match="norm placement: pre here, but the post-only layout computes post"):
        plan(*network(Semantics(norm_placement="pre")), target)
    assert prove(plan(*network(Semantics(norm_placement="post")), target)) == 100


def test_describes_each_kind_once() -> None:
    rows = {r["to"]: r for r in describe(planned(SPLIT))}
    assert rows["blocks.{0..1}.q"]["from"] == "blocks.{0..1}.qkv"
    assert rows["blocks.{0..1}.q"]["how"] == "cut out"
    assert rows["pos"]["how"] == "copied"
    assert rows["blocks.{0..1}.ls"]["n"] == 2
    turned = dialect("turned", rule(B + "{q,k,v}: d a", B + "attn.{q,k,v}.weight: a d"), POS, LS)
    assert {r["how"] for r in describe(planned(turned)) if "q" in r["to"]} == {"transposed"}
