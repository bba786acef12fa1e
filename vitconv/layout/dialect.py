"""A dialect: one codebase's names and shapes, as data; and its variants, one per combination of choices."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from functools import cache, cached_property
from typing import Any

from vitconv.errors import LayoutError, UsageError
from vitconv.layout.canonical import stack_of
from vitconv.layout.rule import Alias, Choice, Const, Doubt, Entry, Forbid, Option, Rule, Tie
from vitconv.record import dataclass

# A number, or a place in a template where one will stand.
_DIGITS = re.compile(r"\d+|\{(?:i|l|\d*s(?:[+-]\d+)?)\}")
_WORD = re.compile(r"\{([A-Za-z]\w*)\}")


@dataclass(frozen=True, eq=False)
class Dialect:
    """One layout.

    Attributes:
        name: the name on the command line.
        title: what it is, in words.
        source: where the layout is defined: repository, file, version.
        library: the Python package whose own loader opens a file of this dialect.
        entries: rules, constants, aliases, ties and choices.
        implies: facts that hold for every file of the dialect; a tuple of values where several are possible.
        doubts: what a network may compute besides, by the tensors it has.
        forbids: keys that say that a file cannot be carried, each with its reason.
        cannot: canonical templates (regular expressions) it has no place for, each with the reason.
        equal: axes that are one size in every network of the dialect, such as attention width and width.
        family: dialects of one family share a canonical schema.
        staged: its entries are written per stage, `{s}`, and block, and are unrolled for each network; see `stages`.
        author: facts that the author's own code takes, filled in when a file is read and nothing else says them.
        usual: facts that the library takes when its configuration leaves them out; only for who wants just that.
        marks: keys beside the network that say that a file of the more general dialect is one of this.
        under: a more general dialect that explains the same files; a file that fits both is that one's, unless told.
        chunked: the path whose blocks may be named in chunks; see `chunks`.
        derived: canonical templates that the library makes up itself, and how: such a tensor is no loss if it is equal.
    """

    name: str
    title: str
    source: str
    library: str
    entries: tuple[Entry, ...]
    implies: Mapping[str, Any] = field(default_factory=dict)
    forbids: tuple[Forbid, ...] = ()
    doubts: tuple[Doubt, ...] = ()
    cannot: Mapping[str, str] = field(default_factory=dict)
    equal: tuple[tuple[str, str], ...] = ()
    family: str = "plain"
    staged: bool = False
    under: str = ""
    marks: tuple[str, ...] = ()
    author: Mapping[str, Any] = field(default_factory=dict)
    usual: Mapping[str, Any] = field(default_factory=dict)
    derived: Mapping[str, str] = field(default_factory=dict)
    chunked: str = ""

    @cached_property
    def choices(self) -> tuple[Choice, ...]:
        """The choices, in order."""
        return tuple(e for e in self.entries if isinstance(e, Choice))

    @cached_property
    def made(self) -> dict[tuple[object, ...], tuple[Item, ...]]:
        """Items that were filled in before, by entry and words."""
        return {}

    @cached_property
    def _with_words(self) -> dict[int, bool]:
        return {}

    def worded(self, e: Rule | Const | Alias) -> bool:
        """Say whether an entry has words to be filled in."""
        if id(e) not in self._with_words:
            self._with_words[id(e)] = any(map(_words_in, (e.key, *_names(e))))
        return self._with_words[id(e)]

    @cached_property
    def variants(self) -> tuple[Variant, ...]:
        """Every combination of options that go together and that the library has, the default one first."""
        own = (tuple(o for o in c.options if not o.foreign) for c in self.choices)
        every = (Variant(self, combo) for combo in itertools.product(*own))
        return tuple(v for v in every if v.possible)

    @cached_property
    def foreign(self) -> tuple[Variant, ...]:
        """The combinations with an option that files have and the library has not; they are read only."""
        every = (Variant(self, combo) for combo in itertools.product(*(c.options for c in self.choices)))
        return tuple(v for v in every if v.possible and any(o.foreign for o in v.options))

    @cached_property
    def required(self) -> dict[int, tuple[Rule, ...]]:
        """{id of a tuple of entries: its rules without which no file fits}, aside from those an alias may stand for."""
        groups = [self.entries, *(o.entries for c in self.choices for o in c.options)]
        served = {e.of for g in groups for e in g if isinstance(e, Alias)}
        # The body is empty in a network of one layer.
        return {
            id(g): tuple(
                e for e in g if isinstance(e, Rule) and not e.optional and e.layers != "body" and e.key not in served
            )
            for g in groups
        }

    def variant(self, wanted: Mapping[str, str]) -> Variant:
        """Return the first variant that agrees with `wanted` ({choice: option}).

        Raises:
            UsageError: an unknown choice or option, or options that do not go together.
        """
        self.check_choices(wanted)
        return next(v for v in self.variants if v.agrees(wanted))

    def check_choices(self, wanted: Mapping[str, str]) -> None:
        """Raise UsageError when `wanted` names a choice, option or combination this dialect does not have."""
        known = {c.name: [o.name for o in c.options] for c in self.choices}
        for name, option in wanted.items():
            if name not in known:
                raise UsageError(f"{self.name} has no choice {name!r}; it has: {', '.join(known) or 'none'}")
            if option not in known[name]:
                raise UsageError(f"{self.name}: {name}={option!r}: expected one of {', '.join(known[name])}")
        if not any(v.agrees(wanted) for v in self.variants):
            raise UsageError(
                f"{self.name}: these do not go together: {', '.join(f'{k}={v}' for k, v in wanted.items())}"
            )


@dataclass(frozen=True)
class Item:
    """One entry with its path words filled in: `key` holds at most `{i}` still; `layers` are those it speaks of."""

    entry: Rule | Const | Alias
    key: str
    parts: tuple[str, ...]
    layers: str = "all"

    @property
    def optional(self) -> bool:
        """True when the tensor may be absent."""
        return isinstance(self.entry, Alias) or self.entry.optional

    @property
    def stack(self) -> str:
        """The stack of blocks whose depth it follows."""
        return stack_of(self.parts[0]) if isinstance(self.entry, Rule) else ""

    @property
    def group(self) -> str:
        """The group of optional tensors it belongs to, or ""."""
        return self.entry.group if isinstance(self.entry, Rule) else ""


@dataclass(frozen=True, eq=False)
class Variant:
    """A dialect with one option of every choice taken."""

    dialect: Dialect
    options: tuple[Option, ...]

    @cached_property
    def taken(self) -> dict[str, str]:
        """{choice: option} of every choice."""
        return {c.name: o.name for c, o in zip(self.dialect.choices, self.options, strict=True)}

    @cached_property
    def names(self) -> dict[str, str]:
        """{choice: option}, without choices for which the library has one option only, when it is that."""
        pairs = zip(self.dialect.choices, self.options, strict=True)
        return {c.name: o.name for c, o in pairs if o.foreign or sum(not x.foreign for x in c.options) > 1}

    @cached_property
    def own(self) -> dict[str, str]:
        """{choice: option} of those that the library has: what a file of its own dialect is written as again."""
        return {c.name: o.name for c, o in zip(self.dialect.choices, self.options, strict=True) if not o.foreign}

    @cached_property
    def implies(self) -> dict[str, Any]:
        """Facts that follow from the dialect and the options taken."""
        out = dict(self.dialect.implies)
        for o in self.options:
            out |= o.implies
        return out

    @cached_property
    def maybe(self) -> dict[str, tuple[Any, ...]]:
        """Every value of a fact that a file of this variant may have, where it may have one that is not implied."""
        out: dict[str, tuple[Any, ...]] = {}
        for name, values in (pair for o in self.options for pair in o.maybe.items()):
            here = out.get(name, self.implies.get(name, ()))
            out[name] = (*(here if isinstance(here, tuple) else (here,)), *values)
        return out

    @cached_property
    def author(self) -> dict[str, Any]:
        """Facts of the author's own code; the options taken say more than the dialect."""
        out = dict(self.dialect.author)
        for o in self.options:
            out |= o.author
        # Where several values are possible the author takes one of them.
        return {k: v for k, v in out.items() if isinstance(self.implies.get(k, ()), tuple)}

    @cached_property
    def read_only(self) -> frozenset[str]:
        """The choices whose option is not written unless it is asked for."""
        return frozenset(name for name, o in zip(self.taken, self.options, strict=True) if o.read_only)

    @cached_property
    def possible(self) -> bool:
        """True when every option goes together with the others."""
        return all(self.taken[c] in allowed for o in self.options for c, allowed in o.only.items())

    def needed(self) -> Iterator[str]:
        """Yield the keys without which nothing fits."""
        bind, last = self._words
        for group in (self.dialect.entries, *(o.entries for o in self.options)):
            for r in self.dialect.required[id(group)]:
                yield _fill(r.key, bind if r.layers == "first" or not r.per_layer else last)

    @cached_property
    def needed_keys(self) -> tuple[str, ...]:
        """The keys without which nothing fits, for those that look at all of them, again and again."""
        return tuple(self.needed())

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """The keys of all items."""
        return tuple(item.key for item in self.items)

    @cached_property
    def _words(self) -> tuple[dict[str, str], dict[str, str]]:
        """The words of the body and those of the last layer."""
        bind = {word: text for o in self.options for word, text in o.bind.items()}
        return bind, bind | {word: text for o in self.options for word, text in o.last.items()}

    @cached_property
    def items(self) -> tuple[Item, ...]:
        """Rules, constants and aliases, words filled in; nested words are filled from the outside in.

        An entry whose words differ in the last layer becomes two: one for the body, one for the last.
        """
        bind, last = self._words
        words = tuple(bind.items()), tuple(last.items())
        known = self.dialect.made
        out: list[Item] = []
        for e in self._entries():
            if isinstance(e, Tie):
                continue
            # Most variants share most of their items: an entry is filled once per set of words that it has.
            memo = (id(e), *(words if self.dialect.worded(e) else ()))
            if memo not in known:
                known[memo] = _items(e, bind, last)
            out += known[memo]
        return tuple(out)

    @cached_property
    def ties(self) -> tuple[Tie, ...]:
        """Canonical tensors held once."""
        return tuple(e for e in self._entries() if isinstance(e, Tie))

    def asked(self, wanted: Mapping[str, str]) -> bool:
        """True when every option that is read on request only is requested."""
        return all(wanted.get(c) == o.name for c, o in zip(self.taken, self.options, strict=True) if o.asked)

    def agrees(self, wanted: Mapping[str, str]) -> bool:
        """True when every wanted option is taken."""
        return all(self.taken.get(c) == o for c, o in wanted.items())

    def _entries(self) -> Iterator[Rule | Const | Alias | Tie]:
        for e in itertools.chain(self.dialect.entries, *(o.entries for o in self.options)):
            if isinstance(e, Choice):
                if not any(e is c for c in self.dialect.choices):
                    raise LayoutError(f"{self.dialect.name}: choice {e.name!r} stands inside another choice")
                continue
            yield e


def _items(e: Rule | Const | Alias, bind: Mapping[str, str], last: Mapping[str, str]) -> tuple[Item, ...]:
    layers = e.layers if isinstance(e, Rule) else "all"
    body, end = _item(e, bind, layers), _item(e, last, layers)
    if "{i}" not in e.key or layers in ("body", "first") or body == end:
        return (body,)
    if layers == "last":
        return (end,)
    return replace(body, layers="body"), replace(end, layers="last")


def _names(e: Rule | Const | Alias) -> list[str]:
    return [p.key for p in e.parts] if isinstance(e, Rule) else [e.of] if isinstance(e, Alias) else []


def _item(e: Rule | Const | Alias, bind: Mapping[str, str], layers: str) -> Item:
    return Item(e, _fill(e.key, bind), tuple(_fill(n, bind) for n in _names(e)), layers)


def _fill(template: str, bind: Mapping[str, str]) -> str:
    for _ in range(3):
        for w in _words_in(template):
            if w not in bind:
                raise LayoutError(f"{template!r}: no choice binds {{{w}}}")
            template = template.replace(f"{{{w}}}", bind[w])
    return template


@cache
def _words_in(template: str) -> tuple[str, ...]:
    return tuple(w for w in _WORD.findall(template) if w not in ("i", "s", "l"))


@cache
def form(key: str) -> str:
    """Return the key with every number, and every place for one, replaced by '#': equal for all layers alike."""
    return _DIGITS.sub("#", key)


@cache
def pattern(template: str) -> re.Pattern[str]:
    """Return the regular expression of a template; group 1 is the layer."""
    head, sep, tail = template.partition("{i}")
    index = "(0|[1-9][0-9]{0,4})" if sep else ""
    rest = re.escape(tail).replace(re.escape("{i}"), r"\1")
    return re.compile(re.escape(head) + index + rest)


def layers_of(which: str, depth: int) -> range:
    """Return the layers that a filter speaks of."""
    return {
        "all": range(depth),
        "body": range(max(depth - 1, 0)),
        "last": range(max(depth - 1, 0), depth),
        "first": range(min(1, depth)),
        "early": range(max(depth - 1, 0)),
    }[which]
