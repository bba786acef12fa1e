"""Saying a network in a target dialect: which variant can, what it needs, and what it has no place for."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from typing import Any

from vitconv.errors import Refused
from vitconv.layout.canonical import layer_of, template_of
from vitconv.layout.dialect import Dialect, Item, Variant, layers_of
from vitconv.layout.match import bind, collapse
from vitconv.layout.rule import Alias, Const, Rule
from vitconv.layout.unify import Bound


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
    fills: Mapping[str, float] = field(default_factory=dict)
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
) -> Encoding:
    """Return the variant that says the canonical tensors `names` ({name: shape}) with the least left over.

    A variant whose implied facts contradict `facts` is never taken. Among equals the first declared wins.

    Raises:
        Refused: the facts contradict every variant; the message says which and why.
    """
    dialect.check_choices(wanted or {})
    candidates = [v for v in dialect.variants if v.agrees(wanted or {})]
    allowed = [v for v in candidates if not contradictions(v, facts)]
    if not allowed:
        raise Refused(_contradicted(dialect, candidates, facts))
    have: dict[str, set[int | None]] = {}
    for name in names:
        have.setdefault(template_of(name), set()).add(layer_of(name))
    options = [v for v in allowed if _conditions(v, have)] or allowed
    best = min(range(len(options)), key=lambda j: (*_cost(options[j], have, depth), j))
    return _say(options[best], names, depth)


def contradictions(variant: Variant, facts: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return {fact: (the network's, what the variant computes)} for known facts that do not go together."""
    out = {}
    for name, implied in variant.implies.items():
        here = _values(facts.get(name))
        if here and not here & _values(implied):
            out[name] = (facts[name], implied)
    return out


def undecided(variant: Variant, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return {fact: what the variant computes} for facts that the network leaves open and the variant does not."""
    out = {}
    for name, implied in variant.implies.items():
        here = _values(facts.get(name))
        if not here and name in DECISIVE:
            out[name] = implied
    return out


DECISIVE = frozenset({"kv_normalised", "norm_placement"})


def _values(value: Any) -> set[Any]:
    return set() if value is None else set(value) if isinstance(value, (tuple, list, set)) else {value}


def _conditions(v: Variant, have: Mapping[str, set[int | None]]) -> bool:
    return all(all(n in have for n in o.needs) and not any(n in have for n in o.without) for o in v.options)


def _wanted(item: Item, depth: int) -> list[int | None]:
    return list(layers_of(item.layers, depth)) if "{i}" in item.key else [None]


def _alive(v: Variant, have: Container[str]) -> set[str]:
    """Return the groups of optional tensors of which the network has any."""
    return {item.group for item in v.items if item.group and any(p in have for p in item.parts)}


def _cost(v: Variant, have: Mapping[str, set[int | None]], depth: int) -> tuple[int, int, int]:
    """Return (tensors lacking, canonical tensors left over, tensors made up) without naming them."""
    said: dict[str, set[int | None]] = {}
    lacking = made_up = 0
    alive = _alive(v, have)
    for item in v.items:
        if not isinstance(item.entry, Rule):
            continue
        fills = dict(item.entry.fill)
        layers = _wanted(item, depth)
        parts = [
            (p, set(range(depth)) if item.entry.scanned else (set(layers) if "{i}" in p else {None}))
            for p in item.parts
        ]
        present = [layer <= have.get(p, set()) for p, layer in parts]
        any_there = any(layer & have.get(p, set()) for p, layer in parts)
        sayable = all(ok or p in fills for ok, (p, _) in zip(present, parts, strict=True))
        optional = item.optional and item.group not in alive
        if sayable and (any(present) or not optional):
            made_up += len(layers) * present.count(False)
            for p, layer in parts:
                said.setdefault(p, set()).update(layer)
        elif any_there or not optional:
            lacking += len(layers)
    for t in v.ties:
        for p in t.parts:
            said.setdefault(p, set()).update(said.get(t.of, set()))
    left = sum(len(layers - said.get(t, set())) for t, layers in have.items())
    return lacking, left, made_up


def _say(v: Variant, names: Mapping[str, tuple[int, ...]], depth: int) -> Encoding:
    bound: list[Bound] = []
    fills: dict[str, float] = {}
    missing: dict[str, tuple[str, ...]] = {}
    copies: dict[str, str] = {}
    said: set[str] = set()
    alive = _alive(v, set(map(template_of, names)))
    for item in v.items:
        entry = item.entry
        if not isinstance(entry, Rule):
            continue
        filled = dict(entry.fill)
        for layer in _wanted(item, depth):
            key = item.key if layer is None else item.key.replace("{i}", str(layer))
            b = bind(item, key, layer, depth)
            lacks = [n for n in b.parts if n not in names]
            fixable = {n: filled[template_of(n)] for n in lacks if template_of(n) in filled}
            if item.optional and item.group not in alive and len(lacks) == len(b.parts):
                continue
            if len(fixable) < len(lacks):
                missing[key] = tuple(n for n in lacks if n not in fixable)
                continue
            bound.append(b)
            fills |= fixable
            said |= set(b.parts)
    for t in v.ties:
        said |= {p.replace("{i}", str(i)) for p in t.parts for i in range(depth)}
    keys = {b.key for b in bound}
    for item in v.items:
        if isinstance(item.entry, Alias):
            for layer in _wanted(item, depth):
                of = item.parts[0] if layer is None else item.parts[0].replace("{i}", str(layer))
                if of in keys:
                    copies[item.key if layer is None else item.key.replace("{i}", str(layer))] = of
    consts = {
        (item.key if layer is None else item.key.replace("{i}", str(layer))): item.entry
        for item in v.items
        if isinstance(item.entry, Const) and not item.entry.optional
        for layer in _wanted(item, depth)
    }
    residue = tuple(n for n in names if n not in said)
    return Encoding(v, tuple(bound), fills, residue, missing, copies, consts)


def _contradicted(dialect: Dialect, candidates: list[Variant], facts: Mapping[str, Any]) -> str:
    lines = []
    for name in dict.fromkeys(n for v in candidates for n in contradictions(v, facts)):
        can = dict.fromkeys(x for v in candidates for x in sorted(map(str, _values(v.implies.get(name)))))
        here = " or ".join(sorted(map(str, _values(facts[name]))))
        lines.append(f"{name.replace('_', ' ')}: {here} here, but {dialect.title} computes {' or '.join(can)}")
    return f"{dialect.name} cannot compute this function:\n  " + "\n  ".join(lines)


def explain_residue(dialect: Dialect, residue: tuple[str, ...]) -> list[str]:
    """Return one line per kind of left-over tensor, with the dialect's reason where it gives one."""
    by_reason: dict[str, list[str]] = {}
    for name in residue:
        t = template_of(name)
        reason = next((r for p, r in dialect.cannot.items() if re.search(p, t)), "")
        by_reason.setdefault(reason, []).append(name)
    return [
        f"{', '.join(collapse(names))}" + (f": {dialect.name} has no place for {reason}" if reason else "")
        for reason, names in by_reason.items()
    ]
