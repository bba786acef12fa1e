"""The rule: a permutation of elements between one whole tensor of a dialect and m canonical parts.

    rule("blocks.{i}.attn.qkv.weight: (* a) d", "blocks.{i}.attn.{q,k,v}.weight: a d")

The whole is on the dialect's side. `{i}` is the layer, `{q,k,v}` a list: on the part side the parts are stacked and
`*` says where their index lives; on both sides, with equal length, it is one rule per item. `{word}` is a piece of path
that a `Choice` binds. A `+` in the whole joins unequal parts in order. Swap the sides: that is the inverse, and the
adjoint too.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import field
from functools import cache
from typing import Any

from vitconv.errors import LayoutError
from vitconv.layout.shape import Axes, atoms, caret, parse_axes, show_axes
from vitconv.record import dataclass

_LIST = re.compile(r"\{([^{}]*,[^{}]*)\}")
_BRACES = re.compile(r"[^{}]*(?:\{[^{}]*\}[^{}]*)*")
LAYERS = ("all", "body", "last", "first", "early")


@dataclass(frozen=True)
class Part:
    """One canonical side of a rule: a name template and its axes."""

    key: str
    axes: Axes


@dataclass(frozen=True)
class Rule:
    """One whole tensor and its parts.

    Attributes:
        key: name template of the whole; `axes` are its axes.
        parts: the canonical tensors, in order along `*` or `+`.
        optional: the whole may be absent: in every layer or in none.
        group: optional rules of one group are all there, or none of them is.
        layers: which layers it speaks of: all, body (all but the last), last, first.
        fill: canonical tensors that may be absent on encode and are then written as this number, or as
            `vitconv.layout.derived` makes them up by this word; said aloud.
        sparse: an optional whole may be there in some layers only; for reading.
    """

    key: str
    axes: Axes
    parts: tuple[Part, ...]
    optional: bool = False
    layers: str = "all"
    fill: tuple[tuple[str, float | str], ...] = ()
    group: str = ""
    sparse: bool = False

    @property
    def per_layer(self) -> bool:
        """True when the whole is one tensor per layer."""
        return "{i}" in self.key

    @property
    def scanned(self) -> bool:
        """True when the layers are stacked inside the whole."""
        return not self.per_layer and any("{i}" in p.key for p in self.parts)

    @property
    def joined(self) -> int | None:
        """The index of the axis that is a sum, or None."""
        return next((j for j, a in enumerate(self.axes) if a.joined), None)

    def __str__(self) -> str:
        right = ", ".join(f"{p.key}: {show_axes(p.axes)}" for p in self.parts)
        return f"{self.key}: {show_axes(self.axes)}  <->  {right}"


@dataclass(frozen=True)
class Const:
    """A tensor of the dialect with a fixed value: written on encode, compared bitwise on decode.

    `value` is a number, "arange" (0, 1, 2, ... along the last axis), numbers, one for each of as many equal parts of
    the first axis, or a buffer of `vitconv.layout.buffers`. The dtype "float" is that of the network. A file may lack
    an `optional` one, which is written only if it is `written`.
    """

    key: str
    axes: Axes
    value: float | str | tuple[float, ...]
    dtype: str = "I64"
    optional: bool = True
    written: bool = False


@dataclass(frozen=True)
class Alias:
    """A second name of a tensor (tied weights): written twice, compared on decode, gradients summed.

    When only the alias is in a file, it stands for `of`.
    """

    key: str
    of: str


@dataclass(frozen=True)
class Tie:
    """Canonical tensors that this dialect holds only once: copied on decode, must be equal on encode."""

    parts: tuple[str, ...]
    of: str


@dataclass(frozen=True)
class Forbid:
    """Keys that say: this cannot be carried. `pattern` is a regular expression, `reason` is told to the user.

    `absent` turns it round: the keys that a file lacks say it, when it lacks only such keys and holds nothing unknown.
    """

    pattern: str
    reason: str
    absent: bool = False


@dataclass(frozen=True)
class Doubt:
    """Facts that a network may have besides those implied, as another class of the library with the same keys.

    It is one that has the canonical tensors `needs` and none of `without`; it is asked about where that decides, but
    for the facts in `usual`: every network of these tensors that was published has them, so they are taken, and said.
    `note` is said of every such file.
    """

    maybe: Mapping[str, tuple[Any, ...]]
    needs: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    usual: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""

    def about(self, names: Container[str]) -> bool:
        """Say whether a network that holds tensors of these canonical names is one of these."""
        return all(n in names for n in self.needs) and not any(n in names for n in self.without)


@dataclass(frozen=True)
class Option:
    """One alternative of a choice.

    Attributes:
        name: how the user calls it.
        entries: rules that hold when it is taken.
        bind: values of the `{word}` fields in keys; `last` are those of the last layer, where they differ.
        needs / without: canonical templates that must, or must not, be in the network.
        implies: facts that follow from it; a fact with several values is a tuple of them.
        maybe: what a file of these keys may compute besides, as another class of the library: {fact: values}. Such a
            file is asked about where that decides; nothing of the kind is written.
        only: the options of other choices it goes together with, {choice: options}; any, when not named.
        author: facts of the author's own code that are taken when nothing else says them; see `Dialect`.
        read_only: some files have it, and none is written so unless it is asked for.
        foreign: files have it that the library itself does not open: tried when nothing else fits, never written.
        asked: no shape tells it, so it is read only when it is asked for.
    """

    name: str
    entries: tuple[Entry, ...] = ()
    bind: Mapping[str, str] = field(default_factory=dict)
    last: Mapping[str, str] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    implies: Mapping[str, Any] = field(default_factory=dict)
    only: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    author: Mapping[str, Any] = field(default_factory=dict)
    maybe: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    read_only: bool = False
    foreign: bool = False
    asked: bool = False


@dataclass(frozen=True)
class Choice:
    """Alternatives of which exactly one holds; the first is the default when writing.

    `square`: when the shapes allow several, the one whose axis of this name is a square number is taken, if it is
    the only one, and said; otherwise the file is ambiguous and `--set NAME=OPTION` decides.
    """

    name: str
    options: tuple[Option, ...]
    square: str = ""


Entry = Rule | Const | Alias | Tie | Choice


def rule(
    whole: str,
    *parts: str,
    optional: bool = False,
    layers: str = "all",
    fill: Mapping[str, float | str] | None = None,
    group: str = "",
) -> tuple[Rule, ...]:
    """Build the rules of one line of the notation, more than one when both sides hold lists of equal length.

    Raises:
        LayoutError: the notation is at fault (with a caret), or the two sides are not the same elements.
    """
    if layers not in LAYERS:
        raise LayoutError(f"layers={layers!r}: expected one of {', '.join(LAYERS)}")
    m = _LIST.search(whole)
    if m:
        items = _items(whole, m)
        right = [_LIST.search(p) for p in parts]
        if not all(r is None or len(r[1].split(",")) == len(items) for r in right) or not any(right):
            raise caret(whole, m.start(), "a list on both sides needs the same length on both")
        out: list[Rule] = []
        for j, item in enumerate(items):
            left = whole[: m.start()] + item.strip() + whole[m.end() :]
            these = [p if r is None else _put(p, r, j) for p, r in zip(parts, right, strict=True)]
            own = {name: x for name, x in (fill or {}).items() if any(t.startswith(f"{name}:") for t in these)}
            out += rule(left, *these, optional=optional, layers=layers, fill=own, group=group)
        return tuple(out)
    key, axes = _side(whole)
    sides: list[Part] = []
    for text in parts:
        inner = _LIST.search(text)
        count = len(_items(text, inner)) if inner else 1
        sides += [Part(*_side(_put(text, inner, j) if inner else text)) for j in range(count)]
    filled = tuple((fill or {}).items())
    made = Rule(key, axes, tuple(sides), optional, layers, filled, group)
    _check(made)
    return (made,)


def linear(
    whole: str, part: str, axes: str, *, optional: bool = False, layers: str = "all", bias: bool | None = True
) -> tuple[Rule, ...]:
    """Build weight and bias of a linear layer, `axes` as `out in`; `bias` False makes it optional, None none.

    An `optional` layer has both or neither.
    """
    first = axes.split()[0]
    group = whole if optional and bias else ""
    out = rule(f"{whole}.weight: {axes}", f"{part}.weight: {axes}", optional=optional, layers=layers, group=group)
    if bias is None:
        return out
    may = optional or not bias
    return out + rule(f"{whole}.bias: {first}", f"{part}.bias: {first}", optional=may, layers=layers, group=group)


def norm(whole: str, part: str, axis: str = "d", *, optional: bool = False, layers: str = "all") -> tuple[Rule, ...]:
    """Build weight and bias of a norm over `axis`; an `optional` norm has both or neither."""
    group = whole if optional else ""
    return tuple(
        r
        for kind in ("weight", "bias")
        for r in rule(
            f"{whole}.{kind}: {axis}", f"{part}.{kind}: {axis}", optional=optional, layers=layers, group=group
        )
    )


def const(
    whole: str,
    value: float | str | tuple[float, ...],
    *,
    dtype: str = "I64",
    optional: bool = True,
    written: bool | None = None,
) -> tuple[Const, ...]:
    """Build a constant of the dialect, such as position ids; `written` unless it is optional, or as said."""
    key, axes = _side(whole)
    return (Const(key, axes, value, dtype, optional, not optional if written is None else written),)


def alias(key: str, of: str) -> tuple[Alias, ...]:
    """Build a second name for the dialect's own tensor `of`."""
    if ("{i}" in key) != ("{i}" in of):
        raise LayoutError(f"alias {key!r} and {of!r}: one is per layer, the other is not")
    return (Alias(key, of),)


def tie(parts: Sequence[str], of: str) -> tuple[Tie, ...]:
    """Build canonical tensors that the dialect holds once, under the rule of `of`."""
    return (Tie(tuple(parts), of),)


def _items(text: str, m: re.Match[str]) -> list[str]:
    items = m[1].split(",")
    if not all(map(str.strip, items)):
        raise caret(text, m.start(), "an item of this list is empty")
    return items


def _put(text: str, m: re.Match[str], j: int) -> str:
    return text[: m.start()] + m[1].split(",")[j].strip() + text[m.end() :]


def _side(text: str) -> tuple[str, Axes]:
    key, colon, _ = text.rpartition(":")
    if not colon:
        raise caret(text, len(text), "a side is 'key: axes'; the ':' is missing")
    if not key.strip():
        raise caret(text, 0, "the key is missing")
    if not _BRACES.fullmatch(key):
        raise _unbalanced(text, key)
    try:
        return key.strip(), _axes(text[len(key) + 1 :])
    except LayoutError:
        # Once more with the key before it, so that the caret stands under the fault.
        return key.strip(), parse_axes(text, len(key) + 1)


@cache
def _axes(text: str) -> Axes:
    return parse_axes(text)


def _unbalanced(text: str, key: str) -> LayoutError:
    depth = 0
    for at, ch in enumerate(key):
        depth += (ch == "{") - (ch == "}")
        if depth not in (0, 1):
            return caret(text, at, "braces do not match")
    return caret(text, key.rindex("{"), "this brace is not closed")


def _check(r: Rule) -> None:
    """Both sides must hold the same atoms, once each."""
    starred = any("*" in a.atoms for a in r.axes)
    terms = r.axes[r.joined].atoms if r.joined is not None else ()
    if any("*" in a.atoms for p in r.parts for a in p.axes):
        raise LayoutError(f"'*' belongs to the whole, where the parts' index lives: {r}")
    if terms and len(terms) != len(r.parts):
        raise LayoutError(f"{len(terms)} terms are joined but there are {len(r.parts)} parts: {r}")
    if starred != ((len(r.parts) > 1 and not terms) or r.scanned):
        raise LayoutError(f"several parts need a '*' or a '+' axis in the whole, one part needs none: {r}")
    if r.per_layer and r.layers in ("all", "body") and (one := [p.key for p in r.parts if "{i}" not in p.key]):
        raise LayoutError(f"a tensor of every layer cannot be one tensor for all layers, {', '.join(one)}: {r}")
    unknown = [name for name, _ in r.fill if name not in {p.key for p in r.parts}]
    if unknown:
        raise LayoutError(f"fill names {', '.join(map(repr, unknown))}, which is no part: {r}")
    if r.scanned and len(r.parts) > 1:
        raise LayoutError(f"a whole that stacks the layers takes one part: {r}")
    common = [x for a in r.axes if not a.joined for x in a.atoms if x not in ("*", "1")]
    for j, p in enumerate(r.parts):
        want = sorted(common + [x for x in terms[j : j + 1] if x != "1"])
        if sorted(atoms(p.axes)) != want:
            found = show_axes(p.axes)
            raise LayoutError(f"not the same elements: {p.key} has axes {found}, the whole gives {' '.join(want)}: {r}")
        if any(a.joined for a in p.axes):
            raise LayoutError(f"a sum belongs to the whole: {r}")
