"""The plan of a conversion: every output tensor, where its elements come from, and what would be lost.

It is made from headers alone, before a byte is read; `proof` checks it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any

from vitconv.errors import Lacking, LayoutError, Refused
from vitconv.layout.canonical import layer_of, role_of, template_of
from vitconv.layout.chunks import CHUNKS, in_chunks
from vitconv.layout.derived import derived_as, made_up
from vitconv.layout.dialect import Dialect
from vitconv.layout.encode import Encoding, encode, explain_residue, undecided
from vitconv.layout.match import Match, check_equal, collapse
from vitconv.layout.network import Cell, Made, Network
from vitconv.layout.recipe import Piece, Views, compose
from vitconv.layout.rule import Const
from vitconv.layout.semantics import Semantics
from vitconv.layout.shape import shape_of
from vitconv.layout.unify import Bound, unify_parts
from vitconv.layout.written_buffers import settled
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
    preferred: Mapping[str, str] | None = None,
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
        preferred: options of the target to take where others say no more of the network.
        given: axis sizes told by the user.
        order: the keys of the file in file order, which the targets follow.
        spare: whether a tensor may be left out on the condition that the target makes up the same one.

    Raises:
        Refused: the target computes another function, a fact that decides this is unknown, tensors are lacking, their
            shapes do not fit, or an axis the target needs (such as `h`) is not known.
    """
    facts: dict[str, Any] = {**network.open, **network.facts.known()}
    said = encode(target, network.shapes, network.depth, facts, wanted, preferred)
    given = dict(given or {})
    said = in_chunks(said, network.depth, given.pop(CHUNKS, 0))
    target = said.variant.dialect
    _need_all(target, said, facts, network)
    # Under its own keys a network stays what it is, known or not.
    _need_facts(target, said, facts, unseen=source.dialect.name != target.name)
    _check_table(target, said, network)
    sizes = _sizes(target, said, network, given)
    # muP starts a network under canonical names, for code that is told its scale.
    if source.dialect.implies and (target.family == "plain" or target.name != source.dialect.name):
        _check_scale(target, network.facts, sizes)
    filled = _filled(network, said, sizes)
    views = Views(sizes)
    targets = [_target(b, filled, sizes, views) for b in said.bound]
    by_key = {t.key: t for t in targets}
    targets += [Target(k, by_key[of].dtype, by_key[of].shape, by_key[of].pieces) for k, of in said.copies.items()]
    usual = _usual_dtype(filled)
    for k, c, shape in settled(said.consts, sizes, network.facts, usual) if said.consts else ():
        targets.append(Target(k, usual if c.dtype == "float" else c.dtype, shape, (), (), c))
    rank = {key: j for j, key in enumerate(order or [b.key for b in source.bound])}
    targets.sort(key=lambda t: min(((rank.get(p.source, len(rank)), p.src) for p in t.pieces), default=(len(rank), 0)))
    over = tuple(filled.cells[n] for n in said.residue)
    grid = f":{network.facts.grid[0]}x{network.facts.grid[1]}" if network.facts.grid else ""
    derived = tuple(
        (c, how + grid if how.startswith("sincos:") else how)
        for c in over
        if (how := derived_as(target, c.name)) and spare(c)
    )
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
    known = {"h": facts.heads, **dict(zip(("rows", "columns"), facts.grid or (), strict=False))}
    told = {**{x: n for x, n in known.items() if n and _has(said, x)}, **(given or {})}
    try:
        sizes = unify_parts(said.bound, network.shapes, told)
        check_equal(target, sizes)
    except LayoutError as e:
        # What has no place may be the cause: a classifier is as wide as the layer before it.
        before = tuple(n for n in said.residue if n.startswith("pool."))
        why = ["", *explain_residue(target, before)] if before else []
        raise Refused(f"{target.name} cannot be written: {e}" + "\n  ".join(why)) from None
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
    "embed.pos": "--edit make-position:rule=KIND writes the table of sines that the source's code makes anew",
    "embed.pos_cls": "--edit unfold-cls-position gives the class token a position row of zeros, which changes nothing",
}


def _need_all(target: Dialect, said: Encoding, facts: Mapping[str, Any], network: Network) -> None:
    if not said.missing:
        return
    remedies = (
        _REMEDIES if facts.get("position") == "sincos" else {k: v for k, v in _REMEDIES.items() if k != "embed.pos"}
    )
    lacking = dict.fromkeys(n for names in said.missing.values() for n in names)
    how = ", ".join(f"{k}={v}" for k, v in said.variant.names.items())
    raise Lacking(
        f"{target.name}{f' ({how})' if how else ''} needs tensors that this network does not have:\n"
        f"  to write: {', '.join(collapse(said.missing))}\n"
        f"  lacking: {', '.join(collapse(lacking))}\n"
        + "".join(f"  it has instead: {line}\n" for line in _instead(target, said, lacking, network))
        + _made_up(lacking)
        + "".join(f"; {hint}" for name, hint in remedies.items() if name in lacking and "embed.cls" not in lacking)
    )


def _instead(target: Dialect, said: Encoding, lacking: Iterable[str], network: Network) -> list[str]:
    """Return what the network has and the target has no place for, where it is of the kind of what is lacking."""
    roles = {role_of(name) for name in lacking}
    place = {part for item in said.variant.items for part in item.parts}
    over = [n for n in said.residue if layer_of(n) is None and role_of(n) in roles and template_of(n) not in place]
    keys = [k for n in over if not (k := network.cells[n].view.tensor).startswith("=") and k != n]
    files = f" ({', '.join(dict.fromkeys(keys))} in the file)" if keys else ""
    return [line + files for line in explain_residue(target, tuple(over), network.facts.known())]


# What can be made up and not be felt: {end of the name: value}.
_UNFELT = {".bias": "0", ".ls1": "1", ".ls2": "1", "embed.mask": "0"}


def _made_up(lacking: Iterable[str]) -> str:
    """Say how to make up what the function does not feel; of all else, that no value would be right."""
    kinds = dict.fromkeys(map(template_of, lacking))
    safe = {t: next((v for end, v in _UNFELT.items() if t.endswith(end)), None) for t in kinds}
    edits = " ".join(f"--edit fill:{t}={value}" for t, value in safe.items() if value)
    felt = [t for t, value in safe.items() if value is None]
    lines = [f"made up without changing the function: {edits}"] if edits else []
    if felt:
        lines.append(f"no made-up value is right for {', '.join(felt)}: take a layout that needs none of it")
    return "  " + "\n  ".join([*lines, "or choose another variant with --set CHOICE=OPTION"])


def _need_facts(target: Dialect, said: Encoding, facts: Mapping[str, Any], *, unseen: bool) -> None:
    for name, implied in undecided(said.variant, facts).items():
        if name in facts and not unseen:
            continue
        values = [str(v).lower() if isinstance(v, bool) else str(v) for v in _several(implied)]
        how = f"--set {name}={'|'.join(values)}"
        if name == "kv_normalised":
            how += ", or --set release=X.Y.Z of the library that wrote it"
        raise Refused(
            f"{target.title} computes {name.replace('_', ' ')} {' or '.join(values)}, and nothing says whether this"
            f" network does; say so with {how}"
        )


def _check_table(target: Dialect, said: Encoding, network: Network) -> None:
    """Refuse sines that the source's code adds without a table, where the target's code adds none."""
    if target.family != "plain" or not target.implies or network.facts.position != "sincos":
        return
    # The embedding of a trunk is elsewhere, and its positions with it.
    there = "embed.patch.weight" not in network.cells or any(n.startswith("embed.pos") for n in network.cells)
    if there or {**said.variant.implies, **said.variant.author}.get("position") == "sincos":
        return
    raise Refused(
        f"position is sincos, and there is no table of positions: {target.title} without one adds none;"
        f" {_REMEDIES['embed.pos']}"
    )


def _check_scale(target: Dialect, facts: Semantics, sizes: Mapping[str, int]) -> None:
    """Refuse a scale of the scores that is not one over the root of the head width: no layout here has another."""
    scale = facts.attention_scale
    if not (scale and target.implies) or facts.attention == "cosine":
        return
    widths = {f"stage {s}, ": (sizes.get(f"a_{s}", 0), h) for s, h in enumerate(facts.stage_heads or ())}
    widths = widths or {"": (sizes.get("a", 0), facts.heads or 0)}
    for where, (a, h) in widths.items():
        usual = (a / h) ** -0.5 if a and h else scale
        if abs(scale - usual) > 1e-6 * usual:
            raise Refused(
                f"{target.name} cannot compute this function:\n  attention scale: {where}{scale:g} here, but"
                f" {target.title} scales by 1/sqrt({a // h})"
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
