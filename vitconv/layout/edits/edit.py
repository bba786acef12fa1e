"""What an edit is: a name, its parameters, and a function from network to network."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from vitconv.errors import UsageError
from vitconv.layout.canonical import SCHEMA, slot, template_of
from vitconv.layout.network import Network
from vitconv.record import dataclass

Values = Mapping[str, Any]


@dataclass(frozen=True)
class Param:
    """One parameter: its name, what it says in words, how its text is read, and what holds when it is not given."""

    name: str
    what: str
    parse: Callable[[str], Any]
    required: bool = False
    otherwise: str = ""


@dataclass(frozen=True)
class Edit:
    """One kind of edit.

    Attributes:
        name: as written in `--edit NAME[:key=value,...]`.
        title: what it does, in one line.
        exact: whether the function stays what it was, in words.
        adjoint: how gradients go back through it, in words, or "none".
        params: its parameters.
        apply: returns the edited network, its log one entry longer.
        bare: the parameter that a value without `key=` gives, as in `cast:BF16`.
        named: reads the values of keys that are canonical names, as in `fill:norm.bias=0`; they arrive under "names".
        example: a line that works.
    """

    name: str
    title: str
    exact: str
    adjoint: str
    params: tuple[Param, ...]
    apply: Callable[[Network, Values], Network]
    bare: str | None = None
    named: Param | None = None
    example: str = ""

    def read(self, text: str, spec: str) -> dict[str, Any]:
        """Return {parameter: value} from the text after the edit's name; `spec` is the whole, for messages.

        Raises:
            UsageError: an unknown, repeated, lacking or malformed parameter; the message lists what exists.
        """
        by_name = {p.name: p for p in self.params}
        values: dict[str, Any] = {}
        names: dict[str, Any] = {}
        for item in _items(text):
            key, eq, value = item.partition("=")
            if not eq and self.bare is not None and self.bare not in values:
                key, value = self.bare, item
            if key in values or key in names:
                raise UsageError(f"--edit {spec}: {key} is given twice")
            if key in by_name and (eq or key == self.bare):
                values[key] = self._parse(by_name[key], value, spec)
            elif self.named is not None and eq and "." in key:
                names[key] = self._parse(self.named, value, spec)
            else:
                raise UsageError(f"--edit {spec}: {self.name} has no parameter {item!r}; it has: {self.usage()}")
        lacking = [p for p in self.params if p.required and p.name not in values]
        if lacking or (self.named is not None and not names):
            what = ", ".join(f"{p.name} ({p.what})" for p in lacking) or self.named_usage()
            raise UsageError(f"--edit {spec}: {self.name} needs {what}" + self._as())
        return {**values, "names": names} if self.named is not None else values

    def _parse(self, p: Param, text: str, spec: str) -> Any:
        try:
            return p.parse(text)
        except ValueError as e:
            raise UsageError(f"--edit {spec}: {p.name}={text}: expected {e}") from None

    def named_usage(self) -> str:
        """Return how a canonical name and its value are given."""
        return f"NAME=VALUE ({self.named.what})" if self.named is not None else ""

    def usage(self) -> str:
        """Return all parameters in words."""
        said = [f"{p.name} ({p.what}{f'; {p.otherwise}' if p.otherwise else ''})" for p in self.params]
        return "; ".join([*([self.named_usage()] if self.named else []), *said]) or "none"

    def _as(self) -> str:
        return f", as in --edit {self.example}" if self.example else ""


def _items(text: str) -> list[str]:
    """Split at commas that are not inside braces."""
    items, depth = [""], 0
    for ch in text:
        depth += (ch == "{") - (ch == "}")
        if ch == "," and depth <= 0:
            items.append("")
        else:
            items[-1] += ch
    return [stripped for item in items if (stripped := item.strip())]


def choice(*options: str) -> Callable[[str], str]:
    """Return a reader of one of `options`."""

    def parse(text: str) -> str:
        if text not in options:
            raise ValueError(f"one of {', '.join(options)}")
        return text

    return parse


def count(text: str) -> int:
    """Read a whole number above zero."""
    if not text.isascii() or not text.isdigit() or int(text) == 0:
        raise ValueError("a whole number above zero")
    return int(text)


def pair(text: str) -> tuple[int, int]:
    """Read `14x14` or, for a square, `14`: (height, width)."""
    parts = text.lower().split("x")
    try:
        sizes = [count(p) for p in parts]
    except ValueError:
        sizes = []
    if len(sizes) not in (1, 2):
        raise ValueError("a height and a width, as 14x14")
    return sizes[0], sizes[-1]


def show(size: tuple[int, int]) -> str:
    """Return `14x14`."""
    return f"{size[0]}x{size[1]}"


def named(template: str, depth: int) -> list[str]:
    """Return the concrete names of a canonical template, one per layer."""
    return [template.replace("{i}", str(i)) for i in range(depth)] if "{i}" in template else [template]


def spelled(pattern: str) -> list[str]:
    """Return the patterns that `{q,k,v}` and `{0..11}` stand for, as messages write them; `{i}` stays."""
    for m in re.finditer(r"\{([^{}]*)\}", pattern):
        span = re.fullmatch(r"(\d{1,4})\.\.(\d{1,4})", m[1])
        if span:
            options = [str(i) for i in range(int(span[1]), int(span[2]) + 1)]
        elif "," in m[1]:
            options = [found for part in m[1].split(",") for found in _span(part.strip())]
        else:
            continue
        return [p for o in options for p in spelled(pattern[: m.start()] + o + pattern[m.end() :])]
    return [pattern]


def _span(part: str) -> list[str]:
    return [p.strip("{}") for p in spelled(f"{{{part}}}")]


def sized(network: Network, facts: Mapping[str, Any] | None = None, **sizes: int) -> Network:
    """Return a copy with other axis sizes and facts; what is said of a fact replaces what was open about it."""
    facts = facts or {}
    return dataclasses.replace(
        network,
        sizes={**network.sizes, **sizes},
        facts=network.facts.replaced(facts),
        open={k: v for k, v in network.open.items() if k not in facts},
    )


def without(network: Network, names: Iterable[str]) -> Network:
    """Return a copy without the tensors `names`, nor the sizes of axes that no tensor has any more."""
    gone = set(names)
    left = network.without(list(gone))
    had = {x for n in gone for x in _axes(n)}
    have = {x for n in left.cells for x in _axes(n)}
    return dataclasses.replace(left, sizes={x: n for x, n in left.sizes.items() if x not in had or x in have})


def _axes(name: str) -> tuple[str, ...]:
    template = template_of(name)
    return slot(template).axes if template in SCHEMA else ()
