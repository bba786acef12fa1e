"""Why layers are not found in a file: some are not there, they are counted from one, or their list has another name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from vitconv.errors import shown
from vitconv.layout.dialect import Dialect
from vitconv.layout.header import Header
from vitconv.layout.match import Match, closest, collapse

_NUMBER = re.compile(r"(?<!\d)\d{1,5}(?=[._/])")
# Names of one layer that two networks share by chance.
_CHANCE = 3


def lost_layers(m: Match, header: Header) -> tuple[list[str], set[str]]:
    """Return a line on each list of layers with gaps in it, and the names before and with the numbers that lack."""
    have: dict[str, set[int]] = {}
    for item in m.variant.items:
        stem, number, _ = item.key.partition("{i}")
        if number:
            have.setdefault(stem, set()).update(i for i in header.find(item.key) if i is not None)
    lines, gone = [], set()
    for stem, there in have.items():
        # More layers than keys are no gap of a network.
        lost = [i for i in range(max(there, default=0)) if i not in there]
        if not lost or max(there) >= len(header.shapes):
            continue
        gone |= {f"{stem}{i}" for i in lost}
        held, absent = (_span(stem, numbers) for numbers in (sorted(there), lost))
        if lost == [0]:
            lines.append(
                f"layers are counted from 0 in {m.dialect.name}, and the first one here is {stem}1: if the file"
                f" counts from 1, rename {stem}1 to {stem}0, and so on; if {stem}0 was lost, take a whole file"
            )
        else:
            lines.append(
                f"the layers {absent} are not in the file, which has {held}: it is a part of a network, or layers were"
                " taken out and the others not counted anew; take a whole file, or number them without a gap"
            )
    return lines, gone


def without_lost(keys: Iterable[str], gone: set[str]) -> list[str]:
    """Return the keys that are in none of the layers that a line speaks of already."""
    return [k for k in keys if not any(k.startswith(g) and not k[len(g) : len(g) + 1].isdigit() for g in gone)]


class Renamed(NamedTuple):
    """The closest layout to a file under other names of its layers, that file's header, and a line on the names."""

    match: Match
    header: Header
    line: str


def renamed(dialects: Sequence[Dialect], header: Header, given: Mapping[str, int] | None) -> Renamed | None:
    """Return what would be the closest if the layers of the file had the name that a dialect gives them.

    None where no dialect has layers of these names within them.
    """
    ends: dict[str, set[str]] = {}
    for key in header.shapes:
        for m in _NUMBER.finditer(key):
            ends.setdefault(key[: m.start()], set()).add(key[m.end() :])
    pairs = {pair for d in dialects for pair in _pairs(d, header, ends)}
    most = max((shared for shared, _, _ in pairs), default=0)
    asked: list[tuple[Dialect, Mapping[str, str]]] = [(d, {}) for d in dialects]
    found: list[Renamed] = []
    for _, here, there in sorted(pair for pair in pairs if pair[0] == most):
        twins = [shown(stem) for stem, names in ends.items() if len(names & ends[here]) > _CHANCE]
        if len(twins) > 1:
            return Renamed(
                closest(asked, header, given), header, f"its layers are in {len(twins)} lists: {', '.join(twins)}"
            )
        first = next(iter(header.shapes)).partition(".")[0] + "."
        before = first if here.startswith(first) and all(key.startswith(first) for key in header.shapes) else ""
        as_there = {_with(key, here, there).removeprefix(before): shape for key, shape in header.shapes.items()}
        if len(as_there) < len(header.shapes):
            continue
        as_named = Header(as_there)
        match = closest(asked, as_named, given)
        rest = f", and take {shown(before)!r} off the others" if before else ""
        every = "; every tensor is explained then" if match.fits else ""
        names = f"{shown(here)}{{i}} here, and {there}{{i}} in {match.dialect.name}"
        line = f"the layers are called {names}: rename them{rest}"
        found.append(Renamed(match, as_named, line + every))
    return min(found, key=lambda x: x.match.badness, default=None)


def _pairs(dialect: Dialect, header: Header, ends: Mapping[str, set[str]]) -> Iterator[tuple[int, str, str]]:
    """Yield (names they share, stem here, stem there) of lists of layers that may be the same under two names."""
    own: dict[str, set[str]] = {}
    for key in {item.key for v in header.settled(dialect).variants for item in v.items}:
        stem, number, end = key.partition("{i}")
        if number:
            own.setdefault(stem, set()).add(end)
    for here, names in ends.items():
        for there, known in own.items():
            shared = len(names & known)
            if here != there and shared > _CHANCE and 2 * shared > len(names):
                yield shared, here, there


def _with(key: str, here: str, there: str) -> str:
    rest = key.removeprefix(here)
    return f"{there}{rest}" if rest != key and rest[:1].isdigit() else key


def _span(stem: str, numbers: list[int]) -> str:
    return ", ".join(collapse(f"{stem}{i}" for i in numbers))
