"""Which dialects are worth trying on a file: each has a few key forms of which every file of it holds at least one.

With them, finding the dialect of a file costs the dialects that may fit, not all that there are. They follow from the
rules, and are kept beside the dialects (`anchors.json`, made by `make docs`) so that no rule need be read to use them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from vitconv.layout.dialect import Dialect, form


def anchors(dialects: Iterable[Dialect]) -> dict[str, tuple[str, ...]]:
    """Return {dialect: forms}, such that a file that fits the dialect holds a key of at least one of the forms.

    Forms that few dialects need are preferred. A dialect of which some variant needs no tensor is left out: it is
    always to be tried.
    """
    needed = {d.name: {frozenset(map(form, v.needed())) for v in d.variants} for d in dialects}
    known_to = Counter(key for variants in needed.values() for key in frozenset().union(*variants))
    return {name: _hitting(sets, known_to) for name, sets in needed.items() if frozenset() not in sets}


def general(dialects: Iterable[Dialect]) -> dict[str, str]:
    """Return {dialect: the more general one that it is a special case of}."""
    return {d.name: d.under for d in dialects if d.under}


def marks(dialects: Iterable[Dialect]) -> dict[str, tuple[str, ...]]:
    """Return {dialect: keys beside the network that say that a file of its general dialect is one of it}."""
    return {d.name: d.marks for d in dialects if d.marks}


def _hitting(sets: set[frozenset[str]], known_to: Counter[str]) -> tuple[str, ...]:
    found: list[str] = []
    while sets:
        uses = Counter(key for needed in sets for key in needed)
        best = min(uses, key=lambda key: (known_to[key], -uses[key], -len(key), key))
        found.append(best)
        sets = {needed for needed in sets if best not in needed}
    return tuple(sorted(found))


def forms(keys: Iterable[str]) -> frozenset[str]:
    """Return the forms of keys, in which every number is '#'."""
    return frozenset(map(form, keys))
