"""A generator of networks in any dialect, made of random bits, and a plain way to carry a plan out.

The file of a drawn network is written here from the rules by numpy alone (reshape, transpose, stack, concatenate), so
the engine is compared with the meaning of the notation and not with itself.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from vitconv.layout.buffers import buffer, is_buffer
from vitconv.layout.canonical import template_of
from vitconv.layout.detect import detect
from vitconv.layout.dialect import Dialect, Item, Variant, layers_of
from vitconv.layout.match import Match
from vitconv.layout.network import Applied, Cell, Network, decode
from vitconv.layout.plan import Plan, plan
from vitconv.layout.proof import prove
from vitconv.layout.recipe import dense_view
from vitconv.layout.rule import Alias, Const, Rule
from vitconv.layout.semantics import Semantics
from vitconv.layout.shape import Axes, Axis, shape_of
from vitconv.layout.token_buffers import class_index
from vitconv.registry import DIALECTS, load

sys.path.insert(0, str(Path(__file__).parent))

Tensors = dict[str, np.ndarray]
WIDTHS = {"F8_E4M3": 1, "BF16": 2, "F16": 2, "F32": 4, "F64": 8}
ONE = {"F8_E4M3": 0x38, "BF16": 0x3F80, "F16": 0x3C00, "F32": 0x3F800000, "F64": 0x3FF << 52}
# Bits that a conversion by value would not keep: -0.0, quiet and signalling NaNs with payloads, the largest number.
ODD = {
    1: (0x80, 0x7F, 0xFF, 0x01),
    2: (0x8000, 0x7FC1, 0xFF81, 0x0001, 0x7C01),
    4: (0x80000000, 0x7FC00123, 0xFF800001, 0x00000001),
    8: (1 << 63, 0x7FF8000000000123, 0xFFF0000000000001, 1),
}


@dataclass(frozen=True)
class Case:
    """A drawn network: its file in one variant, the same in canonical names, and the facts that go with it."""

    variant: Variant
    dtype: str
    file: Tensors
    canonical: Tensors
    consts: frozenset[str]
    facts: Semantics
    axes: Mapping[str, int]
    depth: int

    def __repr__(self) -> str:
        shapes = {k: v.shape for k, v in self.file.items()}
        return f"Case({self.variant.names}, {self.dtype}, depth={self.depth}, {shapes})"


def bits(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Return random bit patterns as unsigned integers of the dtype's width, odd ones among them."""
    width = WIDTHS[dtype]
    out = np.frombuffer(rng.bytes(math.prod(shape) * width), f"u{width}").reshape(shape).copy()
    odd = rng.random(shape) < 0.25
    out[odd] = rng.choice(np.array(ODD[width], f"u{width}"), int(odd.sum()))
    return out


def whole_of(rule: Rule, parts: list[np.ndarray], env: Mapping[str, int]) -> np.ndarray:
    """Write the whole of a rule from its parts, as the notation says."""
    if rule.joined is None:
        moved = [_moved(x, rule.parts[0 if rule.scanned else j].axes, rule.axes, env) for j, x in enumerate(parts)]
        flat = [a for axis in rule.axes for a in axis.atoms]
        out = np.stack(moved, axis=[a for a in flat if a != "1"].index("*")) if "*" in flat else moved[0]
        return out.reshape(shape_of(rule.axes, {**env, "*": len(parts)}))
    at, pieces = rule.joined, []
    for j, (term, x) in enumerate(zip(rule.axes[rule.joined].atoms, parts, strict=True)):
        axes = (*rule.axes[:at], Axis((term,)), *rule.axes[at + 1 :])
        pieces.append(_moved(x, rule.parts[j].axes, axes, env).reshape(shape_of(axes, env)))
    return np.concatenate(pieces, axis=at)


def _moved(x: np.ndarray, axes: Axes, whole: Axes, env: Mapping[str, int]) -> np.ndarray:
    have = [a for axis in axes for a in axis.atoms if a != "1"]
    want = [a for axis in whole for a in axis.atoms if a not in ("1", "*")]
    return x.reshape([int(a) if a.isdigit() else env[a] for a in have]).transpose([have.index(a) for a in want])


def templates(variant: Variant, *, needed: bool = False) -> set[str]:
    """Return the canonical templates that a variant has a place for, or those it needs."""
    rules = [x for x in variant.items if isinstance(x.entry, Rule) and not (needed and x.optional)]
    fills = {n for x in rules for n, _ in x.entry.fill} if needed else set()
    tied = set() if needed else {p for t in variant.ties for p in t.parts}
    return ({p for x in rules for p in x.parts} - fills | tied) - {t for o in variant.options for t in o.without}


def _provides(item: Item, templates: Iterable[str]) -> bool:
    return bool(set(item.parts) & set(templates)) and isinstance(item.entry, Rule)


def networks(random: Random, variant: Variant, dtype: str | None = None, like: Variant | None = None) -> Case:
    """Return a random network that the variant can hold: sizes, depth, optional tensors, dtype and bits are drawn.

    With `like`, those optional tensors are there that the other variant needs, and few that it has no place for.
    """
    favour, must = (templates(like), templates(like, needed=True)) if like else (set(), set())
    # What is one group there is drawn as one, though it be many tensors here.
    together = {p: x.group for x in (like.items if like else ()) if x.group for p in x.parts}
    drawn: dict[str, bool] = {}
    dtype = dtype or random.choice(sorted(WIDTHS))
    rng = np.random.default_rng(random.getrandbits(64))
    depth = random.randint(1, 4)
    waves = any(_has_waves(v) for v in (variant, like) if v)
    env = _sizes(random, variant, depth, square=bool(like and like.dialect.equal), waves=waves)
    needs = {t for o in variant.options for t in o.needs}
    without = {t for o in variant.options for t in o.without}
    on: dict[object, bool] = {}
    present = []
    for item in variant.items:
        if not isinstance(item.entry, Rule):
            continue
        # All tensors of a group are there, or none.
        key = item.group or id(item.entry)
        if key not in on:
            peers = [x for x in variant.items if (x.group or id(x.entry)) == key]
            forced = any(_provides(x, needs) or not x.optional for x in peers)
            barred = any(_provides(x, without) for x in peers)
            likely = 0.5 if like is None or any(_provides(x, favour) for x in peers) else 0.02
            needed = any(_provides(x, must) for x in peers)
            group = next((together[p] for x in peers for p in x.parts if p in together), "")
            luck = random.random() < likely
            on[key] = forced or (not barred and (needed or (drawn.setdefault(group, luck) if group else luck)))
        if on[key]:
            present.append(item)
    return _filled(variant, present, env, depth, rng, dtype, optional_consts=random.random() < 0.5)


def _has_waves(variant: Variant) -> bool:
    return any(isinstance(x.entry, Const) and x.entry.value in ("rope-cos", "rope-sin") for x in variant.items)


def _sizes(random: Random, variant: Variant, depth: int, *, square: bool, waves: bool) -> dict[str, int]:
    rules = [item.entry for item in variant.items if isinstance(item.entry, Rule)]
    axes = {a for r in rules for axis in r.axes for a in axis.atoms} - {"*"}
    env = {a: random.randint(1, 3) for a in sorted(axes) if not a.isdigit()}
    # Sines and cosines of both sides, in pairs, are written for heads of this width.
    h, e = random.randint(1, 3), 4 if waves else random.randint(1, 3)
    # A square grid, so that a position table reads one way only, or is asked about.
    env |= {"n": random.choice([4, 9, 16]), "i": depth, "h": h, "e": e, "a": h * e}
    if {"n", "rows", "columns"} <= axes:
        env |= dict.fromkeys(("rows", "columns"), math.isqrt(env["n"]))
    # Most codebases hold only networks whose attention is as wide as the trunk.
    if variant.dialect.equal or random.random() < (0.9 if square else 0.5):
        env["d"] = env["a"]
    if any(isinstance(x.entry, Const) and x.entry.value == "class-index" for x in variant.items):
        # The table of a square grid.
        env["l"] = random.choice([1, 9, 25])
    # Such as the width of a pooling head.
    env |= {x: env[y] for x, y in variant.dialect.equal if x != "a" and x in env}
    return env


def sized(case: Case, axes: Mapping[str, int]) -> Case:
    """Return a case with the tensors of another one in other sizes."""
    present = [x for x in case.variant.items if isinstance(x.entry, Rule) and set(x.parts) & _said(case)]
    rng = np.random.default_rng(0)
    return _filled(case.variant, present, dict(axes), case.depth, rng, case.dtype, optional_consts=False)


def _said(case: Case) -> set[str]:
    return {template_of(name) for name in case.canonical}


def _filled(
    variant: Variant,
    present: list[Item],
    env: dict[str, int],
    depth: int,
    rng: np.random.Generator,
    dtype: str,
    *,
    optional_consts: bool,
) -> Case:
    canonical: Tensors = {}
    file: Tensors = {}
    for item in present:
        rule = item.entry
        assert isinstance(rule, Rule)
        for layer in layers_of(item.layers, depth) if "{i}" in item.key else [None]:
            layers = range(depth) if rule.scanned else [layer]
            names = [p if i is None else p.replace("{i}", str(i)) for i in layers for p in item.parts]
            for j, name in enumerate(names):
                assert name not in canonical, f"{name} is held twice"
                canonical[name] = bits(rng, shape_of(rule.parts[0 if rule.scanned else j].axes, env), dtype)
            key = item.key if layer is None else item.key.replace("{i}", str(layer))
            file[key] = whole_of(rule, [canonical[n] for n in names], env)
    for tie, i in itertools.product(variant.ties, range(depth)):
        if tie.of.replace("{i}", str(i)) in canonical:
            of = canonical[tie.of.replace("{i}", str(i))]
            canonical |= {p.replace("{i}", str(i)): of for p in tie.parts}
    consts = set()
    for item in variant.items:
        for i in layers_of(item.layers, depth) if "{i}" in item.key else [None]:
            key = item.key if i is None else item.key.replace("{i}", str(i))
            if isinstance(item.entry, Alias):
                of = item.parts[0] if i is None else item.parts[0].replace("{i}", str(i))
                file |= {key: file[of]} if of in file else {}
            elif isinstance(item.entry, Const) and is_buffer(item.entry.value):
                # What follows from a grid is compared by value elsewhere, unless the layout cannot be without it.
                if not item.entry.optional:
                    file[key] = class_index(*[(math.isqrt(env["l"]) + 1) // 2] * 2)
            elif isinstance(item.entry, Const) and (optional_consts or not item.entry.optional):
                file[key] = const_of(item.entry, shape_of(item.entry.axes, {**env, "*": 3}), dtype)
                consts |= {key} if item.entry.optional else set()
    implied = {k: v[0] if isinstance(v, tuple) else v for k, v in variant.implies.items()}
    return Case(variant, dtype, file, canonical, frozenset(consts), Semantics(**implied), env, depth)


def made_bits(values: np.ndarray, dtype: str) -> np.ndarray:
    """Return made-up numbers as bits of a dtype: zeros and ones of any, others of those that numpy has."""
    if set(values.ravel().tolist()) <= {0.0, 1.0}:
        return (values.ravel() * ONE[dtype]).astype(f"u{WIDTHS[dtype]}")
    from vitconv.layout.arith import from_float

    return np.frombuffer(from_float(values, dtype), f"u{WIDTHS[dtype]}")


def const_of(const: Const, shape: tuple[int, ...], dtype: str = "F32") -> np.ndarray:
    """Return a constant of a dialect; `dtype` is that of the network, for constants that follow it."""
    if is_buffer(const.value):
        return buffer(str(const.value), shape)
    if 0 in shape:
        return np.zeros(shape, f"u{WIDTHS[dtype]}")
    if const.dtype == "float":
        ones = np.repeat([v == 1 for v in np.atleast_1d(const.value)], shape[0] // np.size(const.value))
        return (np.broadcast_to(ones, shape).astype("u8") * np.uint64(ONE[dtype])).astype(f"u{WIDTHS[dtype]}")
    kind = {"I64": "i8", "F32": "f4", "BOOL": "?"}[const.dtype]
    if const.value == "arange":
        return np.broadcast_to(np.arange(shape[-1], dtype=kind), shape).copy()
    return np.full(shape, const.value, kind)


def carry(p: Plan, tensors: Tensors) -> Tensors:
    """Carry a plan out element by element: every target starts as all ones and is written by its pieces."""
    out: Tensors = {}
    for t in p.targets:
        if t.const is not None:
            out[t.key] = const_of(t.const, t.shape, t.dtype)
            continue
        kind = np.dtype(f"u{WIDTHS[t.dtype]}")
        flat = np.full(math.prod(t.shape), np.iinfo(kind).max, kind)
        for x in t.pieces:
            src, dst = np.array(x.src), np.array(x.dst)
            for n, s, d in x.dims:
                src, dst = np.add.outer(src, np.arange(n) * s), np.add.outer(dst, np.arange(n) * d)
            if x.source.startswith("="):
                flat[dst] = made_bits(p.network.made[x.source].compute([]), t.dtype)[src]
            else:
                flat[dst] = tensors[x.source].reshape(-1)[src]
        out[t.key] = flat.reshape(t.shape)
    return out


def network_of(
    case: Case, tensors: Tensors, dialect: Dialect, choices: Mapping[str, str] | None = None
) -> tuple[Any, Network]:
    """Return how a file is read, and the network it holds."""
    shapes = {k: v.shape for k, v in tensors.items()}
    grid = {"grid": (1, case.axes["n"])} if "n" in case.axes else {}
    match = detect(shapes, [dialect], choices=choices, given=heads(case), facts=grid)
    return match, decode(match, dict.fromkeys(shapes, case.dtype), case.facts)


def heads(case: Case) -> dict[str, int]:
    """Return the sizes that some files do not hold: heads, and the sides of patches that are kept as rows."""
    return {x: case.axes[x] for x in ("h", "p", "q", "rows", "columns") if x in case.axes}


def convert(
    case: Case,
    tensors: Tensors,
    source: Dialect,
    target: Dialect,
    *,
    choices: Mapping[str, str] | None = None,
    wanted: Mapping[str, str] | None = None,
    residue: Tensors | None = None,
    without: Iterable[str] = (),
) -> Plan:
    """Return the plan from one dialect to another, proved.

    `residue` are canonical tensors that were kept aside, `without` those that were made up on the way here.
    """
    match, network = network_of(case, tensors, source, choices)
    kept = {n: Cell(n, x.shape, case.dtype, dense_view(n, x.shape)) for n, x in (residue or {}).items()}
    gone = tuple(without)
    network = network.without(gone).noted(Applied("drop", "made up on the way here", True, gone))
    network = replace(network, cells={**network.cells, **kept})
    p = plan(match, network, target, wanted=wanted, given=heads(case), order=list(tensors))
    prove(p)
    return p


def encoded(case: Case, target: Dialect, wanted: Mapping[str, str] | None = None) -> Plan:
    """Return the plan that writes the canonical tensors of a case in a dialect, proved."""
    canonical = load(DIALECTS, "canonical")
    cells = {n: Cell(n, x.shape, case.dtype, dense_view(n, x.shape)) for n, x in case.canonical.items()}
    network = Network(cells, {}, {}, case.depth, case.facts)
    p = plan(Match(canonical.variants[0], case.depth, (), {}), network, target, wanted=wanted, given=heads(case))
    prove(p)
    return p


def gathered(network: Network, tensors: Tensors) -> Tensors:
    """Return the canonical tensors of a network, element by element."""
    out: Tensors = {}
    for name, cell in network.cells.items():
        at = np.array(cell.view.offset)
        for n, s in (f for axis in cell.view.dims for f in axis):
            at = np.add.outer(at, np.arange(n) * s)
        out[name] = tensors[cell.view.tensor].reshape(-1)[at].reshape(cell.shape)
    return out


def check_encode(case: Case, target: Dialect) -> None:
    """Check that the engine writes the canonical tensors as the notation says, with the planned header."""
    p = encoded(case, target, case.variant.names)
    out = carry(p, case.canonical)
    assert {t.key: t.shape for t in p.targets} == {k: v.shape for k, v in out.items()}
    assert not p.residue
    assert same(out, without_consts(case))


def check_decode(case: Case, source: Dialect) -> None:
    """Check that the engine reads the file into the canonical tensors that it was made from."""
    _, network = network_of(case, case.file, source, case.variant.names)
    assert same(gathered(network, case.file), case.canonical)


def check_round_trip(case: Case, encoder: Dialect, decoder: Dialect) -> None:
    """Check decode(encode) = id and encode(decode) = id, by the engine alone."""
    out = carry(encoded(case, encoder, case.variant.names), case.canonical)
    _, network = network_of(case, out, decoder, case.variant.names)
    assert same(gathered(network, out), case.canonical)
    again = convert(case, case.file, decoder, encoder, choices=case.variant.names, wanted=case.variant.names)
    assert same(carry(again, case.file), without_consts(case))


def check_adjoint(case: Case, encoder: Dialect, decoder: Dialect) -> None:
    """Check <encode x, y> = <x, decode y> in float64; an alias adds to its original, a tie counts once."""
    rng = np.random.default_rng(0)
    once = {p.replace("{i}", str(i)) for t in case.variant.ties for p in t.parts for i in range(case.depth)}
    # Small whole numbers: every product and sum is exact, whatever the order.
    x = {n: rng.integers(-99, 99, v.shape).astype("f8") for n, v in case.canonical.items()}
    y = {k: rng.integers(-99, 99, v.shape).astype("f8") for k, v in without_consts(case).items()}
    there = carry(encoded(replace(case, dtype="F64"), encoder, case.variant.names), _as_bits(x))
    match, network = network_of(case, y, decoder, case.variant.names)
    assert {k: v.shape for k, v in there.items()} == {k: v.shape for k, v in y.items()}
    left = sum(float((there[k].view("f8") * y[k]).sum()) for k in y if k not in match.consts)
    for key, of in match.copies.items():
        y[of] = y[of] + y[key]
    back = gathered(network, y)
    assert left == sum(float((x[n] * back[n]).sum()) for n in x if n not in once)


def _as_bits(x: Tensors) -> Tensors:
    return {n: v.view("u8") for n, v in x.items()}


def same(a: Tensors, b: Tensors) -> bool:
    """Return True when both hold the same names with the same shapes, widths and bytes."""
    return a.keys() == b.keys() and all(
        a[k].shape == b[k].shape and a[k].dtype == b[k].dtype and a[k].tobytes() == b[k].tobytes() for k in a
    )


def without_consts(case: Case) -> Tensors:
    """Return the file without the constants that may be absent, which are not written."""
    return {k: v for k, v in case.file.items() if k not in case.consts}


@pytest.fixture(scope="session")
def forge() -> SimpleNamespace:
    """Return the generator, the plain executor and the laws."""
    tools = (networks, sized, templates, heads, whole_of, carry, convert, encoded, network_of, gathered, same)
    laws = (check_encode, check_decode, check_round_trip, check_adjoint)
    return SimpleNamespace(**{f.__name__: f for f in (*tools, without_consts, bits, *laws)})
