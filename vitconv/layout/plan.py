"""The plan of a conversion: every output tensor, where its elements come from, and what would be lost.

It is made from headers alone. `prove` checks that no element is lost or used twice, before a byte is read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any

from vitconv.errors import LayoutError, Refused
from vitconv.layout.canonical import template_of
from vitconv.layout.derived import derived_as, made_up
from vitconv.layout.dialect import Dialect
from vitconv.layout.encode import Encoding, encode, explain_residue, undecided
from vitconv.layout.match import Match, check_equal, collapse
from vitconv.layout.network import Cell, Made, Network
from vitconv.layout.recipe import Piece, View, Views, compose, part_shape, tiles
from vitconv.layout.rule import Const
from vitconv.layout.shape import shape_of
from vitconv.layout.unify import Bound, unify_parts
from vitconv.record import dataclass


@dataclass(frozen=True)
class Target:
    """One tensor to write: its pieces in target order, or the constant it is."""

    key: str
    dtype: str
    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]
    parts: tuple[str, ...] = ()
    const: Const | None = None


@dataclass(frozen=True)
class Plan:
    """A whole conversion.

    Attributes:
        source: how the file was read; target: how it will be written.
        network: the canonical tensors after the edits.
        targets: tensors to write, in the order of the source file.
        sizes: axis sizes of the target.
        residue: canonical tensors that have no place in the target.
        equal: pairs of canonical tensors that the target holds once and that must be the same bits.
        derived: canonical tensors that the target makes up itself, each with the value that it must then have.
    """

    source: Match
    target: Encoding
    network: Network
    targets: tuple[Target, ...]
    sizes: Mapping[str, int]
    residue: tuple[Cell, ...] = ()
    equal: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = field(default=())
    derived: tuple[tuple[Cell, str], ...] = ()

    @property
    def byte_copy(self) -> bool:
        """True when nothing is computed."""
        return all(not p.source.startswith("=") for t in self.targets for p in t.pieces) and all(
            t.const is None for t in self.targets
        )


def plan(
    source: Match,
    network: Network,
    target: Dialect,
    *,
    wanted: Mapping[str, str] | None = None,
    given: Mapping[str, int] | None = None,
    order: Sequence[str] | None = None,
    spare: Callable[[Cell], bool] = lambda _: True,
) -> Plan:
    """Return the plan that carries `network` into `target`.

    Args:
        source: how the file was read.
        network: what it holds, after edits.
        target: the dialect to write.
        wanted: options of the target told by the user.
        given: axis sizes told by the user.
        order: the keys of the file in file order, which the targets follow.
        spare: whether a tensor may be left out on the condition that the target makes up the same one.

    Raises:
        Refused: the target computes another function, a fact that decides this is unknown, tensors are lacking, their
            shapes do not fit, or an axis the target needs (such as `h`) is not known.
    """
    facts: dict[str, Any] = {**network.open, **network.facts.known()}
    said = encode(target, network.shapes, network.depth, facts, wanted)
    target = said.variant.dialect
    _need_all(target, said)
    _need_facts(target, said, facts)
    sizes = _sizes(target, said, network, given)
    filled = _filled(network, said, sizes)
    views = Views(sizes)
    targets = [_target(b, filled, sizes, views) for b in said.bound]
    by_key = {t.key: t for t in targets}
    targets += [Target(k, by_key[of].dtype, by_key[of].shape, by_key[of].pieces) for k, of in said.copies.items()]
    usual = _usual_dtype(filled)
    for k, c in said.consts.items():
        dtype = usual if c.dtype == "float" else c.dtype
        targets.append(Target(k, dtype, shape_of(c.axes, {**sizes, "*": 3}), (), (), c))
    rank = {key: j for j, key in enumerate(order or [b.key for b in source.bound])}
    targets.sort(key=lambda t: min(((rank.get(p.source, len(rank)), p.src) for p in t.pieces), default=(len(rank), 0)))
    over = tuple(filled.cells[n] for n in said.residue)
    derived = tuple((c, how) for c in over if (how := derived_as(target, c.name)) and spare(c))
    residue = tuple(c for c in over if not any(c is d for d, _ in derived))
    equal = tuple(
        (name, of)
        for tie in said.variant.ties
        for i in range(network.depth)
        for part in tie.parts
        if (name := part.replace("{i}", str(i))) in filled.cells
        and (of := tie.of.replace("{i}", str(i))) in filled.cells
    )
    return Plan(source, said, filled, tuple(targets), sizes, residue, equal, source.notes, derived)


def _sizes(target: Dialect, said: Encoding, network: Network, given: Mapping[str, int] | None) -> dict[str, int]:
    facts = network.facts
    told = {"h": facts.heads, **(given or {})} if facts.heads and _has(said, "h") else dict(given or {})
    try:
        sizes = unify_parts(said.bound, network.shapes, told)
        check_equal(target, sizes)
    except LayoutError as e:
        raise Refused(f"{target.name} cannot be written: {e}") from None
    # Registers that are made up are none; the number of rotary periods is a quarter of the head width.
    if "r" not in sizes and _has(said, "r"):
        sizes["r"] = 0
    if "f" not in sizes and _has(said, "f"):
        if not facts.heads:
            raise Refused(
                f"{target.name} stores the periods of its rotary positions, which depend on the head width; say --set"
                " heads=N"
            )
        sizes["f"] = sizes["a"] // (4 * facts.heads)
    return sizes


def _has(said: Encoding, axis: str) -> bool:
    return any(axis in a.atoms for b in said.bound for a in b.rule.axes)


_REMEDIES = {
    "embed.pos_cls": "--edit unfold-cls-position gives the class token a position row of zeros, which changes nothing",
}


def _need_all(target: Dialect, said: Encoding) -> None:
    if not said.missing:
        return
    lacking = dict.fromkeys(n for names in said.missing.values() for n in names)
    how = ", ".join(f"{k}={v}" for k, v in said.variant.names.items())
    raise Refused(
        f"{target.name}{f' ({how})' if how else ''} needs tensors that this network does not have:\n"
        f"  to write: {', '.join(collapse(said.missing))}\n"
        f"  lacking: {', '.join(collapse(lacking))}\n"
        f"  make them up with --edit fill:NAME=0, or choose another variant with --set CHOICE=OPTION"
        + "".join(f"; {hint}" for name, hint in _REMEDIES.items() if name in lacking and "embed.cls" not in lacking)
    )


def _need_facts(target: Dialect, said: Encoding, facts: Mapping[str, Any]) -> None:
    for name, implied in undecided(said.variant, facts).items():
        values = [str(v).lower() if isinstance(v, bool) else str(v) for v in _several(implied)]
        how = f"--set {name}={'|'.join(values)}"
        if name == "kv_normalised":
            how += ", or --set release=X.Y.Z of the library that wrote it"
        raise Refused(
            f"{target.title} computes {name.replace('_', ' ')} {' or '.join(values)}, and nothing says whether this"
            f" network does; say so with {how}"
        )


def _several(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def _filled(network: Network, said: Encoding, sizes: Mapping[str, int]) -> Network:
    """Return the network with the tensors that the target asks for and the function does not feel."""
    for b in said.bound:
        # A bias made up out of nothing takes the dtype of its weight.
        siblings = (n.removesuffix(".bias") + ".weight" for n in b.parts)
        present = [network.cells[n] for n in (*b.parts, *siblings) if n in network.cells]
        for j, name in enumerate(b.parts):
            if name in said.fills and name not in network.cells:
                shape = shape_of(b.rule.parts[0 if b.rule.scanned else j].axes, sizes)
                dtype = present[0].dtype if present else _usual_dtype(network)
                network = network.with_made(name, _constant(said.fills[name], shape, dtype))
    return network


def _usual_dtype(network: Network) -> str:
    dtypes = [c.dtype for c in network.cells.values()]
    return max(dict.fromkeys(dtypes), key=dtypes.count)


def _constant(value: float | str, shape: tuple[int, ...], dtype: str) -> Made:
    def compute(_: Any) -> Any:
        import numpy as np

        return made_up(value, shape).astype(np.float64 if dtype == "F64" else np.float32)

    label = f"filled with {value}" if isinstance(value, str) else f"filled with {value:g}"
    return Made(label, (), shape, dtype, compute)


def _target(b: Bound, network: Network, sizes: Mapping[str, int], views: Views) -> Target:
    cells = [network.cells[n] for n in b.parts]
    dtypes = {c.dtype for c in cells}
    if len(dtypes) > 1:
        which = ", ".join(f"{c.name} {c.dtype}" for c in cells)
        raise Refused(f"{b.key} joins tensors of different dtypes ({which}); make them equal with --dtype")
    pieces = tuple(compose(c.view, views.of(b, j)) for j, c in enumerate(cells))
    return Target(b.key, cells[0].dtype, shape_of(b.rule.axes, b.env(sizes)), _joined(pieces), b.parts)


def _joined(pieces: Iterable[Piece]) -> tuple[Piece, ...]:
    """Order pieces by target place and join plain runs that continue each other on both sides."""
    out: list[Piece] = []
    for p in sorted(pieces, key=lambda p: p.dst):
        last = out[-1] if out else None
        flat = last is not None and all(len(x.dims) <= 1 and x.run == x.numel for x in (last, p))
        if last is not None and flat and last.source == p.source:
            n = last.numel
            if last.src + n == p.src and last.dst + n == p.dst:
                out[-1] = Piece(p.source, last.src, last.dst, ((n + p.numel, 1, 1),))
                continue
        out.append(p)
    return tuple(out)


def prove(p: Plan) -> int:
    """Check the plan and return the number of elements accounted for.

    1. The rules of the source use every element of every tensor of the file exactly once, and every canonical tensor
       that was not computed lies where its rule puts it.
    2. The pieces of every target fill every element of it exactly once.
    3. Every canonical tensor of the source is written, left over and said so, or taken away by an edit that says so.
    4. The first, the last and sampled elements of every canonical tensor go back where they came from by the target's
       own rule.

    Raises:
        LayoutError: the plan is wrong; nothing may be written.
    """
    count = _prove_source(p)
    # The layers are alike, so each kind of target is looked at once.
    full: set[tuple[Any, ...]] = set()
    for t in p.targets:
        boxes = tuple((x.dst, tuple((n, d) for n, _, d in x.dims)) for x in t.pieces)
        if t.const is None and (t.shape, boxes) not in full and not tiles(boxes, math.prod(t.shape)):
            raise LayoutError(f"the plan does not fill {t.key} exactly once")
        full.add((t.shape, boxes))
    written = {n for t in p.targets for n in t.parts}
    said = written | {a for a, _ in p.equal} | {c.name for c in p.residue}
    said |= {n for applied in p.network.log for n in applied.removed} | {c.name for c, _ in p.derived}
    whole = 0 not in p.source.sizes.values()
    forgotten = (
        {n for b in p.source.bound for j, n in enumerate(b.parts) if whole or _has_any(b, j, p)} | set(p.network.cells)
    ) - said
    if forgotten:
        raise LayoutError(f"the plan forgets {', '.join(collapse(sorted(forgotten)))}")
    _sample(p)
    return count


def _has_any(b: Bound, j: int, p: Plan) -> bool:
    return 0 not in part_shape(b, j, p.source.sizes)


def _prove_source(p: Plan) -> int:
    total = 0
    homes: dict[str, View] = {}
    places = Views(p.source.sizes)
    numels: dict[tuple[int, int], int] = {}
    for b in p.source.bound:
        views = [places.of(b, j) for j in range(len(b.parts))]
        kind = (id(b.rule), len(b.parts))
        if kind not in numels:
            numels[kind] = math.prod(shape_of(b.rule.axes, b.env(p.source.sizes)))
            if not tiles([(v.offset, tuple(f for axis in v.dims for f in axis)) for v in views], numels[kind]):
                raise LayoutError(f"the rule of {b.key} does not use each of its elements exactly once")
        homes |= zip(b.parts, views, strict=True)
        total += numels[kind]
    for t in p.source.variant.ties:
        for i in range(p.source.depth):
            of = homes.get(t.of.replace("{i}", str(i)))
            homes |= {part.replace("{i}", str(i)): of for part in t.parts} if of else {}
    for name, cell in p.network.cells.items():
        if not cell.view.tensor.startswith("=") and homes.get(name, cell.view) != cell.view:
            raise LayoutError(f"{name} is not taken from where it lies in {homes[name].tensor}")
    return total


def _sample(p: Plan) -> None:
    bounds = {b.key: b for b in p.target.bound}
    places = Views(p.sizes)
    for t in p.targets:
        b = bounds.get(t.key)
        if b is None:
            continue
        for j, name in enumerate(b.parts):
            cell, home = p.network.cells[name], places.of(b, j)
            if not cell.numel:
                continue
            # Both ends, and two inner places that differ in every axis.
            ends = [[0] * len(cell.shape), [n - 1 for n in cell.shape]]
            inner = [[n * ((k + 2 * j) % 17) // 17 for j, n in enumerate(cell.shape)] for k in (3, 7)]
            for index in ends + inner:
                src, dst = _element(cell.view, index), _element(home, index)
                if _source_of(t, dst) != (cell.view.tensor, src):
                    raise LayoutError(f"element {index} of {name} does not come back from {t.key}")


def _element(v: View, index: list[int]) -> int:
    at = v.offset
    for axis, k in zip(v.dims, index, strict=True):
        for n, stride in reversed(axis):
            at += k % n * stride
            k //= n
    return at


def _source_of(t: Target, element: int) -> tuple[str, int] | None:
    for x in t.pieces:
        rest, src = element - x.dst, x.src
        for n, s, d in x.dims:
            k = min(rest // d, n - 1) if rest >= 0 else -1
            if k < 0:
                break
            rest -= k * d
            src += k * s
        else:
            if rest == 0:
                return x.source, src
    return None


def residue_lines(p: Plan) -> list[str]:
    """Return what would be lost, one line per kind."""
    return explain_residue(p.target.variant.dialect, tuple(c.name for c in p.residue))


def describe(p: Plan) -> list[dict[str, Any]]:
    """Return one row per kind of target tensor, layers collapsed: source keys, what happens, target key, shape."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for t in p.targets:
        sources = list(dict.fromkeys(_origin(p, x.source) for x in t.pieces)) or ["(constant)"]
        tag = (template_of(t.parts[0]) if t.parts else t.key, str(t.shape))
        row = rows.setdefault(
            tag, {"from": [], "to": [], "shape": t.shape, "dtype": t.dtype, "how": _how(p, t), "n": 0}
        )
        row["from"] += sources
        row["to"].append(t.key)
        row["n"] += 1
    return [
        {**r, "from": ", ".join(collapse(dict.fromkeys(r["from"]))), "to": ", ".join(collapse(r["to"]))}
        for r in rows.values()
    ]


def _origin(p: Plan, tag: str) -> str:
    if not tag.startswith("="):
        return tag
    made = p.network.made[tag]
    return ", ".join(dict.fromkeys(_origin(p, c.view.tensor) for c in made.inputs)) or f"({made.label})"


def _how(p: Plan, t: Target) -> str:
    if t.const is not None:
        return "constant"
    if any(x.source.startswith("=") for x in t.pieces):
        return "; ".join(dict.fromkeys(p.network.made[x.source].label for x in t.pieces if x.source.startswith("=")))
    if any(len(x.dims) > 1 for x in t.pieces):
        return "transposed" if any(x.run == 1 for x in t.pieces) else "rows moved"
    sources = {x.source for x in t.pieces}
    if len(sources) > 1:
        return f"joined from {len(sources)}"
    whole = next((b for b in p.source.bound if b.key == t.pieces[0].source), None) if t.pieces else None
    return "cut out" if whole and len(whole.parts) > 1 and len(t.parts) < len(whole.parts) else "copied"
