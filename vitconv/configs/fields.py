"""Typed access to a parsed configuration: every value is checked where it is taken out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from vitconv.errors import BadFile

_ABSENT = object()


class Fields:
    """A mapping out of a file, with `where` naming the file and the place in it."""

    def __init__(self, raw: Any, where: str) -> None:
        if not isinstance(raw, Mapping):
            raise BadFile(f"{where}: found {_kind(raw)}, expected a mapping of names to values")
        self.raw: Mapping[str, Any] = raw
        self.where = where

    def __contains__(self, key: str) -> bool:
        return self.raw.get(key) is not None

    def inner(self, key: str) -> Fields:
        """Return the mapping under `key`; an absent one is empty."""
        value = self.raw.get(key)
        return Fields({} if value is None else value, f"{self.where}: {key}")

    def integer(self, key: str, default: Any = _ABSENT, *, least: int = 1) -> int:
        """Return a whole number of at least `least`."""
        value = self._value(key, default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self.wrong(key, f"a whole number of at least {least}")
        return value

    def number(self, key: str, default: Any = _ABSENT, *, least: float = -math.inf) -> float:
        """Return a finite number; text such as "1e-6", which YAML 1.1 does not read as one, is taken as well."""
        value = self._value(key, default)
        try:
            parsed = float(value) if isinstance(value, (int, float, str)) and not isinstance(value, bool) else math.nan
        except (ValueError, OverflowError):
            parsed = math.nan
        if not math.isfinite(parsed) or parsed < least:
            raise self.wrong(key, "a number" if least == -math.inf else f"a number of at least {least:g}")
        return parsed

    def flag(self, key: str, default: Any = _ABSENT) -> bool:
        """Return true or false."""
        value = self._value(key, default)
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false")
        return value

    def text(self, key: str, default: Any = _ABSENT) -> str:
        """Return a word."""
        value = self._value(key, default)
        if not isinstance(value, str):
            raise self.wrong(key, "a word")
        return value

    def pair(self, key: str, default: Any = _ABSENT) -> tuple[int, int]:
        """Return (height, width), from one number or two."""
        value = self._value(key, default)
        items = [value, value] if isinstance(value, int) else value
        ok = isinstance(items, Sequence) and not isinstance(items, str) and len(items) == 2
        if not ok or any(isinstance(v, bool) or not isinstance(v, int) or v < 1 for v in items):
            raise self.wrong(key, "one whole number or two, [height, width]")
        return items[0], items[1]

    def numbers(self, key: str) -> tuple[float, ...]:
        """Return a list of finite numbers."""
        value = self.raw.get(key)
        items = [value] if isinstance(value, (int, float)) else value
        if not isinstance(items, Sequence) or isinstance(items, str) or not items:
            raise self.wrong(key, "a list of numbers")
        return tuple(Fields({key: v}, self.where).number(key) for v in items)

    def wrong(self, key: str, expected: str) -> BadFile:
        """Return the error that says what was found under `key` and what was expected."""
        value = self.raw.get(key)
        found = "is missing" if value is None else f"is {_short(value)}"
        return BadFile(f"{self.where}: {key} {found}, expected {expected}")

    def _value(self, key: str, default: Any) -> Any:
        # A null is as good as absent: libraries write it for "take the default".
        value = self.raw.get(key)
        if value is not None:
            return value
        if default is _ABSENT:
            raise self.wrong(key, "a value")
        return default


def _kind(value: Any) -> str:
    return {list: "a list", str: "text", type(None): "nothing"}.get(type(value), type(value).__name__)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
