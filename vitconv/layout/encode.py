"""Saying a network in a target dialect: which variant can, what it needs, and what it has no place for."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping
from dataclasses import field
from typing import Any

from vitconv.errors import Refused
from vitconv.layout.canonical import SCHEMA, STACKS, layer_of, stack_of, template_of
from vitconv.layout.dialect import Dialect, Item, Variant, layers_of
from vitconv.layout.header import bind
from vitconv.layout.match import collapse, unmet_by
from vitconv.layout.rule import LAYERS, Alias, Const, Rule
from vitconv.layout.unify import Bound
from vitconv.record import dataclass


@dataclass(frozen=True)
class Encoding:
    """How a variant of the target says the network.

    Attributes:
        variant: the target dialect and the options taken.
        bound: the rules to write.
        fills: {canonical name: number} to be made up, each exact for the function.
        residue: canonical names that have no place in the target.
        missing: keys the target needs and the network lacks parts for: {key: lacking canonical names}.
        copies: {key: key it repeats}; consts: {key: constant}.
    """

    variant: Variant
    bound: tuple[Bound, ...]
    fills: Mapping[str, float | str] = field(default_factory=dict)
    residue: tuple[str, ...] = ()
    missing: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    copies: Mapping[str, str] = field(default_factory=dict)
    consts: Mapping[str, Const] = field(default_factory=dict)


def encode(
    dialect: Dialect,
    names: Mapping[str, tuple[int, ...]],
    depth: int,
    facts: Mapping[str, Any],
    wanted: Mapping[str, str] | None = None,
    preferred: Mapping[str, str] | None = None,
) -> Encoding:
    """Return the variant that says the canonical tensors `names` ({name: shape}) with the least left over.

    A variant whose implied facts contradict `facts` is never taken. Among equals the one with most of the `preferred`
    options wins, then the first declared.

    Raises:
        Refused: the facts contradict every variant, or none holds such a network; the message says which and why.
    """
    if dialect.staged:
        from vitconv.layout.stages import unrolled_for_network

        dialect = unrolled_for_network(dialect, names, facts, wanted)
    dialect.check_choices(wanted or {})
    candidates = [v for v in dialect.variants if v.agrees(wanted or {}) and v.read_only <= set(wanted or {})]
    if preferred:
        candidates.sort(key=lambda v: sum(v.taken.get(name) != o for name, o in preferred.items()))
    best = _cheapest((v for v in candidates if not contradictions(v, facts)), _Have(names, depth))
    if best is None:
        raise Refused(_contradicted(dialect, candidates, facts))
    said = _say(best, names, depth)
    if unmet_by(best, {template_of(n) for b in said.bound for n in b.parts}) and not said.missing:
        raise Refused(_unmet(best, said))
    return said


def _cheapest(allowed: Iterable[Variant], have: _Have) -> Variant | None:
    best, least = None, None
    for v in allowed:
        cost = have.cost(v)
        if least is None or cost < least:
            best, least = v, cost
        # Nothing costs less, and among equals the first wins: most conversions end at the first variant.
        if not any(least):
            break
    return best


def contradictions(variant: Variant, facts: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return {fact: (the network's, what the variant computes)} for known facts that do not go together."""
    out = {}
    for name, implied in variant.implies.items():
        here = _values(facts.get(name))
        if here == _BY_TENSORS.get(name) and _values(implied) != _UNSEEN.get(name):
            continue
        if here and not here & _values(implied):
            out[name] = (facts[name], implied)
    return out


def undecided(variant: Variant, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return {fact: what the variant computes} for facts that the network leaves open and the variant does not."""
    out = {}
    for name, implied in variant.implies.items():
        here = _values(facts.get(name))
        if (not here and name in DECISIVE) or (name in _UNSEEN and here & _UNSEEN[name] - _values(implied)):
            out[name] = implied
    return out


DECISIVE = frozenset({"kv_normalised", "norm_placement"})
# No tensor need tell of these: a layout that may have them is asked about before it is written as one that has not.
_UNSEEN = {"position": {"rope"}, "rope_order": {"columns"}}
# These are tensors, which have a place in a layout or have none.
_BY_TENSORS = {"position": {"relative"}}


def _values(value: Any) -> set[Any]:
    return set() if value is None else set(value) if isinstance(value, (tuple, list, set)) else {value}


def _wanted(item: Item, depths: Mapping[str, int]) -> list[int | None]:
    return list(layers_of(item.layers, depths[item.stack])) if "{i}" in item.key else [None]


def _depths(names: Iterable[str], depth: int) -> dict[str, int]:
    """Return the depth of every stack of blocks; `depth` is that of the trunk."""
    depths = {**dict.fromkeys(STACKS, 1), "": depth}
    for name in names:
        stack, layer = stack_of(name), layer_of(name)
        if stack and layer is not None:
            depths[stack] = max(depths[stack], layer + 1)
    return depths


def _alive(v: Variant, have: Container[str]) -> set[str]:
    """Return the groups of optional tensors of which the network has any."""
    return {item.group for item in v.items if item.group and any(p in have for p in item.parts)}


class _Have:
    """The tensors of a network by template, their layers as bits, and what each item would say of them.

    Most variants of a dialect share most of their items, so what was weighed is kept.
    """

    def __init__(self, names: Iterable[str], depth: int) -> None:
        depths = _depths(names, depth)
        self.outside = 1 << max(depths.values())
        self.layers = {(w, s): sum(1 << i for i in layers_of(w, n)) for w in LAYERS for s, n in depths.items()}
        self.have: dict[str, int] = {}
        for name in names:
            layer, t = layer_of(name), template_of(name)
            self.have[t] = self.have.get(t, 0) | (self.outside if layer is None else 1 << layer)
        self.weighed: dict[tuple[int, str, str, bool], tuple[dict[str, int], int, int]] = {}

    def cost(self, v: Variant) -> tuple[int, int, int, int]:
        """Return how many (conditions it breaks, tensors it lacks, tensors it leaves over, tensors it makes up)."""
        said: dict[str, int] = {}
        lacking = made_up = 0
        alive = _alive(v, self.have)
        for item in v.items:
            if isinstance(item.entry, Rule):
                parts, lacks, makes = self._weigh(item, optional=item.optional and item.group not in alive)
                lacking += lacks
                made_up += makes
                for p, layers in parts.items():
                    said[p] = said.get(p, 0) | layers
        broken = len(unmet_by(v, {t for t, layers in said.items() if layers}))
        for t in v.ties:
            said |= {p: said.get(p, 0) | said.get(t.of, 0) for p in t.parts}
        left = sum((layers & ~said.get(t, 0)).bit_count() for t, layers in self.have.items())
        return broken, lacking, left, made_up

    def _weigh(self, item: Item, *, optional: bool) -> tuple[dict[str, int], int, int]:
        """Return ({template: layers said}, tensors lacking, tensors made up)."""
        memo = (id(item.entry), item.key, item.layers, optional)
        if memo not in self.weighed:
            entry = item.entry
            assert isinstance(entry, Rule)
            layers = self.layers["all" if entry.scanned else item.layers, item.stack]
            want = {p: layers if "{i}" in p else self.outside for p in item.parts}
            count = layers.bit_count() if "{i}" in item.key else 1
            fills = {name for name, _ in entry.fill}
            absent = [p for p, bits in want.items() if bits & ~self.have.get(p, 0)]
            any_there = any(bits & self.have.get(p, 0) for p, bits in want.items())
            if optional and not any_there:
                self.weighed[memo] = ({}, 0, 0)
            elif fills.issuperset(absent):
                self.weighed[memo] = (want, 0, count * len(absent))
            else:
                self.weighed[memo] = ({}, count, 0)
        return self.weighed[memo]


def _say(v: Variant, names: Mapping[str, tuple[int, ...]], depth: int) -> Encoding:
    bound: list[Bound] = []
    fills: dict[str, float | str] = {}
    missing: dict[str, tuple[str, ...]] = {}
    copies: dict[str, str] = {}
    said: set[str] = set()
    alive = _alive(v, set(map(template_of, names)))
    depths = _depths(names, depth)
    for item in v.items:
        entry = item.entry
        if not isinstance(entry, Rule):
            continue
        filled = dict(entry.fill)
        here = [bind(item, _at(item.key, layer), layer, depth) for layer in _wanted(item, depths)]
        if item.optional and item.group not in alive and not any(n in names for b in here for n in b.parts):
            continue
        for b in here:
            key = b.key
            lacks = [n for n in b.parts if n not in names]
            fixable = {n: filled[template_of(n)] for n in lacks if template_of(n) in filled}
            if len(fixable) < len(lacks):
                missing[key] = tuple(n for n in lacks if n not in fixable)
                continue
            bound.append(b)
            fills |= fixable
            said |= set(b.parts)
    for t in v.ties:
        said |= {_at(p, i) for p in t.parts for i in range(depth) if _at(t.of, i) in said}
    keys = {b.key for b in bound}
    for item in v.items:
        if isinstance(item.entry, Alias):
            pairs = ((_at(item.key, i), _at(item.parts[0], i)) for i in _wanted(item, depths))
            copies |= {key: of for key, of in pairs if of in keys}
    consts = {
        _at(item.key, layer): item.entry
        for item in v.items
        if isinstance(item.entry, Const) and item.entry.written
        for layer in _wanted(item, depths)
    }
    residue = tuple(n for n in names if n not in said)
    return Encoding(v, tuple(bound), fills, residue, missing, copies, consts)


def _at(template: str, layer: int | None) -> str:
    return template if layer is None else template.replace("{i}", str(layer))


def _unmet(v: Variant, said: Encoding) -> str:
    lines = unmet_by(v, {template_of(n) for b in said.bound for n in b.parts})
    return f"{v.dialect.name} holds no such network:\n  " + "\n  ".join(lines)


def _contradicted(dialect: Dialect, candidates: list[Variant], facts: Mapping[str, Any]) -> str:
    """Name the facts that keep the nearest variants from saying the network, and what these compute instead."""
    found = [contradictions(v, facts) for v in candidates]
    fewest = min(map(len, found))
    near = [c for c in found if len(c) == fewest]
    lines = []
    for name in dict.fromkeys(n for c in near for n in c):
        can = dict.fromkeys(x for c in near if name in c for x in sorted(map(str, _values(c[name][1]))))
        here = " or ".join(sorted(map(str, _values(facts[name]))))
        lines.append(f"{name.replace('_', ' ')}: {here} here, but {dialect.title} computes {' or '.join(can)}")
    return f"{dialect.name} cannot compute this function:\n  " + "\n  ".join(lines)


def explain_residue(dialect: Dialect, residue: tuple[str, ...], facts: Mapping[str, Any] | None = None) -> list[str]:
    """Return one line per kind of left-over tensor, with the dialect's reason, or else what the tensor is.

    A tensor that other variants do have is explained by the fact of the network that they do not compute.
    """
    by_reason: dict[str, list[str]] = {}
    for name in residue:
        t = template_of(name)
        reason = next((r for p, r in dialect.cannot.items() if re.search(p, t)), None)
        reason = (
            (SCHEMA[t].title if t in SCHEMA else "") + _barred(dialect, t, facts or {}) if reason is None else reason
        )
        by_reason.setdefault(reason, []).append(name)
    return [
        f"{', '.join(collapse(names))}" + (f": {dialect.name} has no place for {reason}" if reason else "")
        for reason, names in by_reason.items()
    ]


def _barred(dialect: Dialect, template: str, facts: Mapping[str, Any]) -> str:
    """Say which fact keeps the network from the variants that have a tensor; "" where none does."""
    found = [contradictions(v, facts) for v in dialect.variants if any(template in item.parts for item in v.items)]
    if not all(found):
        return ""
    said = [
        f"{name}={facts[name]} (beside it {_or(can)} is computed)"
        for name, (_, can) in min(found, key=len, default={}).items()
    ]
    return f" and {', '.join(said)}" if said else ""


def _or(values: Any) -> str:
    return " or ".join(sorted(map(str, _values(values))))
