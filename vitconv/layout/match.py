"""Matching one dialect's variants against the names and shapes of a file."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping
from dataclasses import field
from typing import Any

from vitconv.errors import LayoutError, shown
from vitconv.layout.canonical import STACKS
from vitconv.layout.decide import by_facts, decide
from vitconv.layout.dialect import Dialect, Item, Variant
from vitconv.layout.header import Header, bind, expected
from vitconv.layout.rule import Alias, Const, Rule
from vitconv.layout.shape import atoms, shape_of
from vitconv.layout.unify import Bound, unify
from vitconv.record import dataclass

_CELL = re.compile(r"(?<![A-Za-z\d])[0-9]{1,5}(?![A-Za-z\d])")


@dataclass(frozen=True)
class Match:
    """How one variant of a dialect explains a file.

    Attributes:
        variant: the dialect and the options taken.
        depth: number of layers.
        bound: the rules that have a tensor in the file.
        sizes: {axis: size}.
        unknown: keys of the file that nothing explains.
        missing: keys that the variant needs and the file lacks.
        conflict: why the shapes do not fit, or None.
        copies: {key: key it must equal} for aliases.
        consts: {key: its constant}.
        notes: what was decided on the way, in words.
    """

    variant: Variant
    depth: int
    bound: tuple[Bound, ...]
    sizes: Mapping[str, int]
    unknown: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    conflict: str | None = None
    copies: Mapping[str, str] = field(default_factory=dict)
    consts: Mapping[str, Const] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def dialect(self) -> Dialect:
        """The dialect."""
        return self.variant.dialect

    @property
    def fits(self) -> bool:
        """True when nothing is unknown, nothing missing, and the shapes agree."""
        return not (self.unknown or self.missing or self.conflict)

    @property
    def badness(self) -> tuple[int, int]:
        """How far from fitting, for naming the closest; what several layers lack counts once, as it is said once."""
        return (len(self.unknown) + len(collapse(self.missing)), int(self.conflict is not None))


def readings(
    dialect: Dialect,
    header: Header,
    wanted: Mapping[str, str] | None = None,
    given: Mapping[str, int] | None = None,
    facts: Mapping[str, Any] | None = None,
) -> list[Match]:
    """Return every variant that fits, or the single closest one when none does."""
    return fitting(dialect, header, wanted, given, facts) or [closest([(dialect, wanted or {})], header, given)]


def fitting(
    dialect: Dialect,
    header: Header,
    wanted: Mapping[str, str] | None = None,
    given: Mapping[str, int] | None = None,
    facts: Mapping[str, Any] | None = None,
) -> list[Match]:
    """Return every variant that fits, passing over those of which a needed tensor is nowhere."""
    if dialect.staged and not _speaks(dialect, header):
        return []
    dialect = header.settled(dialect)
    solved = _solved((v for v in dialect.variants if v.asked(wanted or {})), header, wanted or {}, given)
    decided = decide(dialect, solved, facts or {})
    if any(o.asked for c in dialect.choices for o in c.options):
        decided = by_facts(decided, lambda: _solved(dialect.variants, header, wanted or {}, given), facts or {})
    if len(decided) == 1 or not any(o.foreign for c in dialect.choices for o in c.options):
        return decided
    more = _solved((v for v in dialect.foreign if v.asked(wanted or {})), header, wanted or {}, given)
    return decide(dialect, [*solved, *more], facts or {}) if more else decided


def _solved(
    variants: Iterable[Variant], header: Header, wanted: Mapping[str, str], given: Mapping[str, int] | None
) -> list[Match]:
    named = [v for v in variants if v.agrees(wanted) and _may_fit(v, header)]
    tried = [m for m in (_cover(v, header) for v in named) if m.fits]
    return [m for m in (_solve(m, header, given) for m in tried) if m.fits]


def closest(
    asked: Iterable[tuple[Dialect, Mapping[str, str]]],
    header: Header,
    given: Mapping[str, int] | None = None,
    *,
    told: bool = True,
) -> Match:
    """Return the variant with the fewest unknown and missing keys, or the conflict of shapes when names do fit.

    Args:
        asked: the dialects, at least one, each with the options told by the user.
        header: names and shapes of the file.
        given: axis sizes told by the user.
        told: whether options count that no shape tells.
    """
    variants: list[Variant] = []
    for dialect, wanted in asked:
        own = [v for v in header.settled(dialect).variants if v.agrees(wanted)]
        # An option that only files have, and that was told.
        own = own or [v for v in dialect.foreign if wanted and v.agrees(wanted)]
        variants += own if told else [v for v in own if not any(o.asked for o in v.options)]
    order = sorted((_at_least(v, header), j) for j, v in enumerate(variants))
    tried: list[tuple[tuple[Any, ...], Match]] = []
    least_far: tuple[Any, ...] | None = None
    for least, j in order:
        if least_far is not None and least > least_far[0][0]:
            break
        m = _cover(variants[j], header)
        tried.append((_distance(m), m))
        least_far = min(least_far or tried[-1][0], tried[-1][0])
    near = [m for far, m in tried if far == least_far]
    # Of those that are as near a more general dialect is named before its special cases.
    names = {m.dialect.name for m in near}
    near = [m for m in near if m.dialect.under not in names]
    if not near[0].fits:
        return near[0]
    solved = [_solve(m, header, given) for m in near]
    # A size that can be told is nearer than a shape that cannot be.
    return min(solved, key=lambda x: (x.conflict is not None, "--axis" not in (x.conflict or "")))


def _distance(m: Match) -> tuple[tuple[int, int], bool, int, bool]:
    # What an option needs, in parentheses, says less to a reader than the tensor that is missing.
    told = any(key.startswith("(") for key in m.missing)
    return m.badness, told, -len(m.bound), bool(m.dialect.under)


def _speaks(dialect: Dialect, header: Header) -> bool:
    from vitconv.layout.stages import speaks

    return speaks(dialect, header.shapes)


def _may_fit(variant: Variant, header: Header) -> bool:
    """Return False when a needed tensor is nowhere, or fewer keys are known than the file has: a quick first look."""
    return all(map(header.find, variant.needed())) and _known(variant, header) >= len(header.shapes)


def _known(variant: Variant, header: Header) -> int:
    return sum(map(header.counts.__getitem__, variant.keys))


def _at_least(variant: Variant, header: Header) -> int:
    """Return a number of unknown and missing keys that a variant surely has, without matching it."""
    lacking = [*map(header.counts.__getitem__, variant.needed_keys)].count(0)
    return lacking + max(0, len(header.shapes) - _known(variant, header))


def _cover(variant: Variant, header: Header) -> Match:
    """Match names only."""
    # At least one block: without any, a lone head or token would pass for a network.
    depths = dict.fromkeys(STACKS, 1)
    for item in variant.items:
        # More layers than keys are a hole in the file, or an attack on memory.
        here = [i for i in header.find(item.key) if i is not None and i < len(header.shapes)]
        if here and max(here) >= depths[item.stack]:
            depths[item.stack] = 1 + max(here)
    depth = depths[""]
    alive = {item.group for item in variant.items if item.group and header.find(item.key)}
    stand_in: dict[str, dict[int | None, str]] = {}
    for item in variant.items:
        if isinstance(item.entry, Alias):
            of = item.parts[0]
            stand_in[of] = {**_alias_keys(item, header, depth), **stand_in.get(of, {})}
    explained: set[str] = set()
    missing: list[str] = []
    bound: list[Bound] = []
    have: set[str] = set()
    copies: dict[str, str] = {}
    consts: dict[str, Const] = {}
    for item in variant.items:
        if isinstance(item.entry, Alias):
            keys = _alias_keys(item, header, depth)
            serving = {**stand_in[item.parts[0]], **header.find(item.parts[0])}
            explained |= set(keys.values())
            copies |= {key: serving[i] for i, key in keys.items() if serving[i] != key}
            continue
        optional = item.optional and item.group not in alive
        part = header.cover(item, depths[item.stack], stand_in.get(item.key), optional=optional)
        explained |= part.explained
        missing += part.missing
        bound += part.bound
        have.update(item.parts if part.bound else ())
        if isinstance(item.entry, Const):
            consts |= dict.fromkeys(part.explained, item.entry)
    missing += [*unmet_by(variant, have), *_bare_layers(variant, explained, depth)]
    unknown = tuple(k for k in header.shapes if k not in explained)
    return Match(variant, depth, tuple(bound), {}, unknown, tuple(missing), None, copies, consts)


def _bare_layers(variant: Variant, explained: Container[str], depth: int) -> list[str]:
    """Return what is lacking of rules that speak of some layers each: every layer has one, and they differ."""
    sparse = [item.key for item in variant.items if isinstance(item.entry, Rule) and item.entry.sparse]
    if not sparse:
        return []
    has = [{k for k in sparse if k.replace("{i}", str(i)) in explained} for i in range(depth)]
    bare = [sparse[0].replace("{i}", str(i)) for i, keys in enumerate(has) if not keys]
    return bare or (["(layers that differ)"] if all(keys == has[0] for keys in has) else [])


def unmet_by(variant: Variant, have: Container[str]) -> list[str]:
    """Return a pseudo key for every condition of an option that the network, of templates `have`, does not meet."""
    out = []
    for name, o in zip(variant.taken, variant.options, strict=True):
        lacks, extra = [n for n in o.needs if n not in have], [n for n in o.without if n in have]
        if lacks or extra:
            out.append(f"({name}={o.name} needs {', '.join(lacks) or 'no ' + ', '.join(extra)})")
    return out


def _alias_keys(item: Item, header: Header, depth: int) -> dict[int | None, str]:
    layers = expected(item, depth)
    return {i: key for i, key in header.find(item.key).items() if i in layers}


def _solve(m: Match, header: Header, given: Mapping[str, int] | None) -> Match:
    try:
        sizes = unify(m.bound, header.shapes, given)
        check_equal(m.dialect, sizes)
        for key, of in m.copies.items():
            if header.shapes[key] != header.shapes[of]:
                raise LayoutError(f"{key} has another shape than {of}, of which it must be a copy")
        _check_stacks(m, sizes)
        _check_consts(m, header, sizes)
    except LayoutError as e:
        return Match(m.variant, m.depth, m.bound, {}, (), (), str(e), m.copies, m.consts)
    depth = sizes.get("i", m.depth)
    bound = m.bound
    if depth != m.depth:
        bound = tuple(bind(_item(m.variant, b), b.key, None, depth) if b.rule.scanned else b for b in bound)
    return Match(m.variant, depth, bound, sizes, (), (), None, m.copies, m.consts)


def _check_stacks(m: Match, sizes: Mapping[str, int]) -> None:
    stacked = next((b.key for b in m.bound if b.rule.scanned), None)
    if stacked and sizes["i"] != m.depth and any(b.layer is not None for b in m.bound):
        raise LayoutError(f"axis i={sizes['i']} (from {stacked}), but other tensors have {m.depth} layers")


def _check_consts(m: Match, header: Header, sizes: Mapping[str, int]) -> None:
    for key, const in m.consts.items():
        if all(a in sizes for a in atoms(const.axes) if not a.isdigit()):
            want = shape_of(const.axes, sizes)
            shape = header.shapes[key]
            if str(const.value).startswith("rope-") and len(shape) == 3:
                # EVA-02 saves the waves by place or by row and column.
                shape = (shape[0] * shape[1], shape[2])
            if shape != want:
                raise LayoutError(f"{key} has shape {list(header.shapes[key])}, expected {list(want)}")


def check_equal(dialect: Dialect, sizes: Mapping[str, int]) -> None:
    """Raise LayoutError when axes differ that are one size in every network of the dialect."""
    for a, b in dialect.equal:
        if sizes.get(a) != sizes.get(b) and a in sizes and b in sizes:
            raise LayoutError(
                f"axis {a}={sizes[a]}, but {dialect.name} holds only networks in which it equals {b}={sizes[b]}"
            )


def _item(variant: Variant, b: Bound) -> Item:
    return next(item for item in variant.items if item.entry is b.rule)


def collapse(keys: Iterable[str]) -> list[str]:
    """Return keys with runs over layers joined: `blocks.{0..11}.x`; control characters are written out."""
    groups: dict[str, list[int]] = {}
    for key in map(shown, keys):
        m = _CELL.search(key)
        if m:
            groups.setdefault(f"{key[: m.start()]}\0{key[m.end() :]}", []).append(int(m[0]))
        else:
            groups.setdefault(key, [])
    out = []
    for name, numbers in groups.items():
        out.append(name.replace("\0", _span(sorted(set(numbers)))) if numbers else name)
    return out


# Layers of a network stand in fewer runs.
_MOST_RUNS = 24


def _span(numbers: list[int]) -> str:
    if len(numbers) == 1:
        return str(numbers[0])
    runs: list[list[int]] = []
    for n in numbers:
        if runs and n == runs[-1][1] + 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    said = [str(a) if a == b else f"{a}..{b}" for a, b in runs]
    if len(said) > _MOST_RUNS:
        said = [*said[:8], f"and {len(numbers) - sum(b - a + 1 for a, b in runs[:8])} more"]
    return "{" + ",".join(said) + "}"
