"""Several readings of one position table: which is meant."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitconv.layout.dialect import Dialect
    from vitconv.layout.match import Match


def decide(dialect: Dialect, fitting: list[Match], facts: Mapping[str, Any]) -> list[Match]:
    """Return the readings of a position table that a stated grid, or else a square one, leaves."""
    for choice in dialect.choices:
        if not choice.square or len(fitting) < 2 or len({m.variant.taken[choice.name] for m in fitting}) < 2:
            continue
        grid = facts.get("grid")
        stated = [m for m in fitting if grid and m.sizes.get(choice.square) == math.prod(grid)]
        if stated:
            fitting = stated
            continue
        likely = [m for j, m in enumerate(fitting) if _plausible(m.sizes.get(choice.square, 0), first=j == 0)]
        if len({m.variant.taken[choice.name] for m in likely}) == 1:
            n, option = likely[0].sizes[choice.square], likely[0].variant.taken[choice.name]
            why = f"since {n} patches make a square grid; say --set grid=HxW if it is not"
            note = f"{choice.name}: read as {option!r}, {why}"
            fitting = [_noted(m, note) for m in likely]
    return fitting


def by_facts(fitting: list[Match], others: Callable[[], list[Match]], facts: Mapping[str, Any]) -> list[Match]:
    """Return the readings that no fact contradicts, from those read on request only if it is one of them."""
    if not facts or not fitting or any(_agrees(m, facts) for m in fitting):
        return fitting
    return [m for m in others() if _agrees(m, facts)] or fitting


def _agrees(m: Match, facts: Mapping[str, Any]) -> bool:
    implied = m.variant.implies.items()
    return all(facts[k] in (v if isinstance(v, tuple) else (v,)) for k, v in implied if facts.get(k) is not None)


def _plausible(n: int, *, first: bool) -> bool:
    """A square grid; for the codebase's default reading 1:2 grids too, so that 9 = 1 + 2x4 or 3x3 is asked."""
    return n > 0 and (math.isqrt(n) ** 2 == n or (first and n % 2 == 0 and math.isqrt(n // 2) ** 2 == n // 2))


def _noted(m: Match, note: str) -> Match:
    return replace(m, notes=(*m.notes, note))
