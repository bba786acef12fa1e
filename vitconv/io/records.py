"""What a pickle turns into when nothing in it is run: plain values and inert records."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Global:
    """Name something that a pickle refers to. It is never imported."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass(eq=False, slots=True)
class Mapping:
    """Hold the pairs of a dict in the order written; a later pair of the same key counts."""

    pairs: list[tuple[object, object]] = field(default_factory=list)

    def get(self, key: str) -> object:
        """Return the value of a text key, or None."""
        for have, value in reversed(self.pairs):
            if isinstance(have, str) and have == key:
                return value
        return None


@dataclass(eq=False, slots=True)
class Record:
    """Hold what a pickle says about one object: what it wanted to call with which arguments, its state and items."""

    called: object
    args: tuple[object, ...] = ()
    state: object = None
    pairs: list[tuple[object, object]] = field(default_factory=list)
    items: list[object] = field(default_factory=list)

    @property
    def kind(self) -> str:
        """Return the dotted name of what it wanted to call, or an empty text."""
        called = self.called
        # Old torch files wrap a class of the user's together with its source text.
        if isinstance(called, External) and isinstance(called.pid, tuple) and len(called.pid) > 1:
            called = called.pid[1]
        return str(called) if isinstance(called, Global) else ""


def attribute_of(value: object) -> Global | None:
    """Return the global that an inert `getattr(global, text)` stands for, or None."""
    if isinstance(value, Record) and value.called in _GETATTR and len(value.args) == 2:
        of, name = value.args
        if isinstance(of, Global) and isinstance(name, str):
            return Global(of.module, f"{of.name}.{name}")
    return None


_GETATTR = (Global("builtins", "getattr"), Global("__builtin__", "getattr"))


@dataclass(eq=False, slots=True)
class External:
    """Hold a persistent id: for torch, the description of a storage outside the pickle."""

    pid: object


@dataclass(frozen=True)
class Unpickled:
    """The object of one pickle, the position after its end, and the globals and persistent ids in it, in order.

    `called` are those of the globals that it wants to call, other than to make an empty object of a class.
    """

    root: object
    end: int
    globals: tuple[Global, ...]
    externals: tuple[External, ...] = ()
    called: tuple[Global, ...] = ()
