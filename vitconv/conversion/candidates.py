"""The dialects that a file may be written in: all of them, or those whose anchors are among its keys."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import field
from functools import cache
from typing import Any

from vitconv.errors import UsageError
from vitconv.layout.anchor import forms
from vitconv.layout.detect import above
from vitconv.layout.dialect import Dialect
from vitconv.record import dataclass
from vitconv.registry import DIALECTS, file_beside, folder_names, load, load_all

Special = Callable[[Collection[str]], Iterable[Dialect]]


@dataclass(frozen=True, eq=False)
class Candidates:
    """The dialects to try; a dialect is loaded when it is asked for.

    `name` is the one that was told, or None.
    """

    name: str | None = None
    _all: list[list[Dialect]] = field(default_factory=list, repr=False)

    def every(self) -> list[Dialect]:
        """Return all of them."""
        if not self._all:
            self._all.append([load(DIALECTS, self.name)] if self.name else list(load_all(DIALECTS).values()))
        return self._all[0]

    def likely(self, keys: Iterable[str]) -> tuple[list[Dialect], Special]:
        """Return those that may fit a file with these keys, special cases of others apart: no other one does.

        The second value gives the special cases, without those of the dialects that are found to fit.
        """
        if self.name or self._all:
            return self.every(), lambda _: []
        have, known, general = forms(keys), _told("anchors"), _told("general")
        names = [n for n in folder_names(DIALECTS) if n not in known or not have.isdisjoint(known[n])]
        special = [n for n in names if n in general]

        def apart(fitting: Collection[str]) -> list[Dialect]:
            return [load(DIALECTS, n) for n in special if not any(x in fitting for x in above(n, general))]

        return list(load_all(DIALECTS, only={*names} - {*special}).values()), apart

    def marked(self, general: str, keys: Collection[str]) -> str | None:
        """Return the special case of a dialect whose marks are all among the keys of a file, unless one was told."""
        marks, under = _told("marks"), _told("general")
        special = (n for n in marks if under.get(n) == general and all(m in keys for m in marks[n]))
        return None if self.name else next(special, None)

    def configured(self, general: str, name: str) -> str | None:
        """Return the layout that a configuration names if it is a special case of a dialect, unless one was told."""
        return name if not self.name and name and general in above(name, _told("general")) else None

    def named(self, name: str | None) -> Dialect | None:
        """Return the candidate of this name, or None."""
        if name is None or (self.name and name != self.name):
            return None
        if name in folder_names(DIALECTS):
            found: Dialect = load(DIALECTS, name)
            return found
        return next((d for d in self.every() if d.name == name), None)


@cache
def _told(what: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(file_beside(DIALECTS, "anchors.json").read_text(encoding="utf-8"))[what]
    return loaded


def check_choices(wanted: Mapping[str, str], dialects: list[Dialect]) -> None:
    """Raise UsageError when no dialect has a choice or an option of this name."""
    known: dict[str, set[str]] = {}
    for choice in (c for d in dialects for c in d.choices):
        known.setdefault(choice.name, set()).update(o.name for o in choice.options)
    for name, option in wanted.items():
        if option not in known.get(name, ()):
            has = ", ".join(sorted(known[name])) if name in known else ""
            raise UsageError(
                f"from.{name}={option}: "
                + (f"expected one of {has}" if has else f"choices: {', '.join(sorted(known))}")
            )
