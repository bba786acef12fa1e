"""Values of a recipe, each of the kind that its key takes: what a file says is not trusted to be of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from vitconv.errors import UsageError

# What every generator of random numbers takes, numpy's too.
SEEDS = 2**32 - 1


def mapping(given: Any, key: str) -> dict[str, Any]:
    """Return the mapping under a key, or the mapping itself when `given` is what stands there; {} where nothing does.

    Raises:
        UsageError: it is something else.
    """
    value = given.get(key) if isinstance(given, Mapping) and ":" not in key else given
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise _wrong(key, value, "names with a value each, as NAME: VALUE")
    return {str(k): v for k, v in value.items()}


def text(raw: Mapping[str, Any], key: str) -> str:
    """Return the text under a key, "" where nothing stands.

    Raises:
        UsageError: it is something else.
    """
    found = raw.get(key)
    if found is None:
        return ""
    if not isinstance(found, str):
        raise _wrong(key, found, "a name or a path")
    return found


def texts(raw: Mapping[str, Any], key: str) -> tuple[str, ...]:
    """Return the names under a key, a list or one alone; () where the key is left out.

    Raises:
        UsageError: it is something else, or holds none.
    """
    found = raw.get(key)
    if found is None:
        return ()
    many = [found] if isinstance(found, str) else found
    if not isinstance(many, list) or not many or not all(isinstance(one, str) for one in many):
        raise _wrong(key, found, "names, as [NAME, NAME]")
    return tuple(many)


def number(where: str, value: Any) -> float:
    """Return a number; infinity switches a limit off.

    Raises:
        UsageError: it is none, or NaN, which nothing is above or below.
    """
    found = of_yaml(value)
    if isinstance(found, bool) or not isinstance(found, (int, float)) or math.isnan(found):
        raise _wrong(where, value, "a number")
    return float(found)


def seed(where: str, value: Any) -> int:
    """Return the seed of random numbers.

    Raises:
        UsageError: it is none.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= SEEDS:
        raise _wrong(where, value, "a whole number from 0 to 2^32 - 1")
    return value


def value(where: str, given: Any, joint: str = "x") -> str:
    """Return one value, or a list of them joined, as it would stand on the command line.

    Raises:
        UsageError: a list or a mapping inside, or nothing.
    """
    many = given if isinstance(given, list) else [given]
    if not many or any(one is None or isinstance(one, (list, Mapping)) for one in many):
        raise _wrong(where, given, "a value, or a list of values")
    return joint.join(str(one).lower() if isinstance(one, bool) else str(one) for one in many)


def of_yaml(given: Any) -> Any:
    """Return a number that YAML 1.1 reads as text, such as 1e-3, as a number."""
    try:
        return float(given) if isinstance(given, str) else given
    except ValueError:
        return given


def _wrong(where: str, found: Any, expected: str) -> UsageError:
    shown = repr(found) if isinstance(found, (str, int, float)) else f"{type(found).__name__}"
    return UsageError(f"{where}: found {shown[:60]}; expected {expected}")
