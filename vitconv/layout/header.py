"""The names and shapes of a file, and what templates explain of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import field
from functools import cached_property
from typing import Any

from vitconv.layout.dialect import Dialect, Item, form, layers_of, pattern
from vitconv.layout.rule import Const, Rule
from vitconv.layout.unify import Bound
from vitconv.record import dataclass


@dataclass(frozen=True)
class Covered:
    """What one entry explains of a file."""

    explained: frozenset[str]
    missing: tuple[str, ...]
    bound: tuple[Bound, ...]


@dataclass(frozen=True)
class Header:
    """The names and shapes of a file: {key: shape}; what was looked up is kept."""

    shapes: Mapping[str, tuple[int, ...]]
    _found: dict[str, dict[int | None, str]] = field(default_factory=dict, repr=False)
    _covered: dict[tuple[Any, ...], Covered] = field(default_factory=dict, repr=False)
    _unrolled: dict[str, Dialect] = field(default_factory=dict, repr=False)

    @cached_property
    def _by_form(self) -> dict[str, list[str]]:
        out: dict[str, list[str]] = defaultdict(list)
        for key in self.shapes:
            out[form(key)].append(key)
        return out

    def find(self, template: str) -> dict[int | None, str]:
        """Return {layer: key} of every key that the template explains; the layer is None without `{i}`."""
        if template not in self._found:
            found: dict[int | None, str] = {}
            for key in self._by_form.get(form(template), ()):
                m = pattern(template).fullmatch(key)
                if m:
                    found[int(m[1]) if m.re.groups else None] = key
            self._found[template] = found
        return self._found[template]

    @cached_property
    def counts(self) -> dict[str, int]:
        """How many keys each template explains, counted when it is asked for."""
        return _Counts(self)

    def settled(self, dialect: Dialect) -> Dialect:
        """Return the dialect; one of stages is unrolled for the blocks that the keys name."""
        if not dialect.staged:
            return dialect
        if dialect.name not in self._unrolled:
            # Here, since most files are plain.
            from vitconv.layout.stages import unrolled_for_file

            self._unrolled[dialect.name] = unrolled_for_file(dialect, self.shapes)
        return self._unrolled[dialect.name]

    def cover(
        self, item: Item, depth: int, stand_in: Mapping[int | None, str] | None = None, *, optional: bool = False
    ) -> Covered:
        """Return what a rule or constant explains, and what it lacks; `stand_in` are aliases that may serve."""
        served = tuple(stand_in.items()) if stand_in else ()
        memo = (id(item.entry), item.key, item.layers, depth, optional, served)
        if memo not in self._covered:
            keys = {**(stand_in or {}), **self.find(item.key)}
            want = expected(item, depth)
            here = {i: k for i, k in keys.items() if i in want}
            absent = [i for i in want if i not in here]
            lacks = absent and (here or not optional) and not getattr(item.entry, "sparse", False)
            missing = [item.key if i is None else item.key.replace("{i}", str(i)) for i in absent] if lacks else []
            bound = [] if isinstance(item.entry, Const) else [bind(item, key, i, depth) for i, key in here.items()]
            self._covered[memo] = Covered(frozenset(here.values()), tuple(missing), tuple(bound))
        return self._covered[memo]


class _Counts(dict[str, int]):
    def __init__(self, header: Header) -> None:
        self._header = header

    def __missing__(self, template: str) -> int:
        count = self[template] = len(self._header.find(template))
        return count


def expected(item: Item, depth: int) -> list[int | None]:
    """Return the layers in which an item is looked for; None stands for one that is in no layer."""
    return list(layers_of(item.layers, depth)) if "{i}" in item.key else [None]


def bind(item: Item, key: str, layer: int | None, depth: int) -> Bound:
    """Return the rule of `item` at one layer, its parts named concretely."""
    entry = item.entry
    assert isinstance(entry, Rule)
    if entry.scanned:
        return Bound(key, entry, None, tuple(p.replace("{i}", str(i)) for i in range(depth) for p in item.parts))
    names = item.parts if layer is None else tuple(p.replace("{i}", str(layer)) for p in item.parts)
    return Bound(key, entry, layer, names)
