"""The axes of one tensor: parsing, sizes, and where each atom lies in memory.

    axis := atom | "(" atom+ ")" | "(" atom ("+" atom)+ ")"        atom := name | integer | "*"

`(h e) d` has two axes, the first a product; `1 (1+n) d` has three, the middle one a concatenation.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping

from vitconv.errors import LayoutError
from vitconv.record import dataclass

_TOKEN = re.compile(r"\s*(?:([A-Za-z]\w*|\d+|\*)|([()+]))")


@dataclass(frozen=True)
class Axis:
    """One axis: a product of atoms, the first outermost, or (`joined`) a concatenation of atoms in order."""

    atoms: tuple[str, ...]
    joined: bool = False

    def __str__(self) -> str:
        text = ("+" if self.joined else " ").join(self.atoms)
        return f"({text})" if len(self.atoms) > 1 else text


Axes = tuple[Axis, ...]
Place = dict[str, tuple[int, int]]


def caret(text: str, at: int, what: str) -> LayoutError:
    """Return an error that shows `text` with a caret under the character `at`."""
    return LayoutError(f"{what}\n  {text}\n  {' ' * at}^")


def parse_axes(text: str, start: int = 0) -> Axes:
    """Parse `text[start:]` into axes.

    Raises:
        LayoutError: a fault of the notation, with a caret under it.
    """
    axes: list[Axis] = []
    group: list[str] | None = None
    joined = want_atom = False
    opened = pos = start
    while pos < len(text) and text[pos:].strip():
        m = _TOKEN.match(text, pos)
        if not m:
            at = pos + len(text[pos:]) - len(text[pos:].lstrip())
            raise caret(text, at, f"unexpected {text[at]!r}; an axis is a name, a number, * or a group in ( )")
        atom, mark, at, pos = m[1], m[2], m.start(m.lastindex or 0), m.end()
        if mark == "(":
            if group is not None:
                raise caret(text, at, "groups do not nest")
            group, joined, want_atom, opened = [], False, True, at
        elif group is None:
            if mark:
                raise caret(text, at, f"{mark!r} outside a group")
            axes.append(Axis((atom,)))
        elif mark == ")":
            if want_atom:
                raise caret(text, at, "an atom is missing here")
            axes.append(Axis(tuple(group), joined))
            group = None
        elif mark == "+":
            if want_atom or (len(group) > 1 and not joined):
                raise caret(text, at, "'+' joins single atoms, as in (1+n); it does not mix with products")
            joined = want_atom = True
        else:
            if joined and not want_atom:
                raise caret(text, at, "'+' expected: a group is either a product or a sum")
            group.append(atom)
            want_atom = False
    if group is not None:
        raise caret(text, opened, "this group is not closed")
    _check_once(axes, text, start)
    return tuple(axes)


def _check_once(axes: list[Axis], text: str, start: int) -> None:
    sums = [m.start() for m in re.finditer(r"\([^)]*\+", text) if m.start() >= start]
    if len(sums) > 1:
        raise caret(text, sums[1], "at most one axis may be a sum")
    seen: set[str] = set()
    for atom in atoms(tuple(axes)):
        if atom in seen:
            at = [m.start() for m in re.finditer(rf"(?<!\w){re.escape(atom)}(?!\w)", text) if m.start() >= start]
            raise caret(text, at[-1], f"axis {atom!r} stands twice")
        seen.add(atom)


def show_axes(axes: Axes) -> str:
    """Return the notation of `axes`."""
    return " ".join(map(str, axes)) or "(a single number)"


def atoms(axes: Axes) -> Iterator[str]:
    """Yield the atoms in order, without the ones."""
    return (x for a in axes for x in a.atoms if x != "1")


def size(atom: str, env: Mapping[str, int]) -> int:
    """Return the size of one atom."""
    return int(atom) if atom.isdigit() else env[atom]


def shape_of(axes: Axes, env: Mapping[str, int]) -> tuple[int, ...]:
    """Return the shape of a tensor with these axes, sizes taken from `env`."""
    return tuple((sum if a.joined else math.prod)(size(x, env) for x in a.atoms) for a in axes)


def places(axes: Axes, env: Mapping[str, int], term: int = 0) -> tuple[int, Place]:
    """Return (offset, {atom: (size, stride)}) in elements of a C-contiguous tensor with these axes.

    `term` chooses the term of the axis that is a sum; the offset is where that term begins.
    """
    out: Place = {}
    offset, stride = 0, 1
    for axis in reversed(axes):
        if axis.joined:
            sizes = [size(x, env) for x in axis.atoms]
            offset = stride * sum(sizes[:term])
            if axis.atoms[term] != "1":
                out[axis.atoms[term]] = (sizes[term], stride)
            stride *= sum(sizes)
            continue
        for atom in reversed(axis.atoms):
            n = size(atom, env)
            if atom != "1":
                out[atom] = (n, stride)
            stride *= n
    return offset, out
