"""Options of every verb that opens a checkpoint, and how their values are read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from vitconv.errors import UsageError
from vitconv.layout.chunks import CHUNKS

F = TypeVar("F", bound=Callable[..., Any])


def source_options(function: F) -> F:
    """Add `--from`, `--set`, `--axis`, `--branch`, `--config` and `--ignore-index`."""
    for option in reversed(
        [
            click.option("--from", "from_", metavar="DIALECT", help="The dialect of the source; detected otherwise."),
            click.option(
                "--set",
                "sets",
                multiple=True,
                metavar="NAME=VALUE",
                help="State a fact (heads=12, norm_eps=1e-6, grid=14x14, release=0.0.12, ...) or choose an option of a"
                " dialect (wrapper=trunk; from.NAME=... for the source).",
            ),
            click.option("--axis", "axes", multiple=True, metavar="NAME=SIZE", help="State an axis size, as h=12."),
            click.option(
                "--branch",
                "--weights",
                "--subtree",
                "branch",
                metavar="NAME",
                help="Which set of weights, when the file holds several: its name, or ema or raw.",
            ),
            click.option(
                "--config",
                type=click.Path(exists=True, dir_okay=False, path_type=Path),
                help="Configuration file to read facts from; looked for beside the checkpoint otherwise.",
            ),
            click.option("--ignore-index", is_flag=True, help="Read the shards that are there, not the index."),
        ]
    ):
        function = option(function)
    return function


def wishes_from(
    from_: str | None,
    sets: Sequence[str],
    axes: Sequence[str],
    branch: str | None,
    config: Path | None,
    ignore_index: bool,
) -> tuple[Any, dict[str, str]]:
    """Return (Wishes, options of the target dialect) from the values of `source_options`.

    Raises:
        UsageError: a value that is not NAME=VALUE, an unknown fact, a size that is no positive number.
    """
    from vitconv.conversion.facts import Wishes

    facts, source, target = read_sets(sets)
    sizes = dict(_axis(text) for text in axes)
    bits = source.pop("bits", None)
    wishes = Wishes(from_, branch, facts, source, sizes, config, ignore_index, bits=bits.upper() if bits else None)
    return wishes, target


def read_sets(sets: Iterable[str]) -> tuple[dict[str, Any], dict[str, str], dict[str, str]]:
    """Return (facts, options of the source, options of the target) from `--set` values."""
    from vitconv.layout.semantics import Semantics, parse_fact

    known = set(Semantics.__dataclass_fields__)
    facts: dict[str, Any] = {}
    source: dict[str, str] = {}
    target: dict[str, str] = {}
    for text in sets:
        name, eq, value = (x.strip() for x in text.partition("="))
        if not eq or not value:
            raise UsageError(f"--set {text}: expected NAME=VALUE, such as heads=12")
        if name in known:
            facts |= [parse_fact(text)]
        elif name.startswith("from."):
            source[name[5:]] = value
        else:
            target[name.removeprefix("to.")] = value
    return facts, source, target


def check_target_choices(choices: dict[str, str], dialect: str | None) -> None:
    """Raise UsageError when `--set` names neither a fact nor a choice of the target dialect."""
    from vitconv.layout.semantics import Semantics
    from vitconv.registry import DIALECTS, load

    known = {c.name for c in load(DIALECTS, dialect).choices} if dialect else set()
    for name in choices:
        if name not in known:
            facts = ", ".join(Semantics.__dataclass_fields__)
            has = f"; choices of {dialect}: {', '.join(sorted(known)) or 'none'}" if dialect else ""
            raise UsageError(f"--set {name}: no such fact{has}; facts: {facts}")


def _axis(text: str) -> tuple[str, int]:
    name, eq, value = (x.strip() for x in text.partition("="))
    if not eq or not value.isdecimal() or (int(value) < 1 and name != CHUNKS):
        raise UsageError(f"--axis {text}: expected NAME=SIZE with a positive size, such as h=12")
    return name, int(value)


def bytes_of(text: str) -> int:
    """Read a size such as 500MB, 2GiB or 1000000, in bytes.

    Raises:
        UsageError: not a size.
    """
    units = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
    number = text.strip().rstrip("BbIiKkMmGg")
    unit = text.strip()[len(number) :].upper()
    try:
        return round(float(number) * units[unit])
    except (KeyError, ValueError, OverflowError):
        raise UsageError(f"{text!r} is not a size; expected one such as 500MB or 2GiB") from None
