"""Which parameters of a network does the user's init function miss? Rows for a report, layers collapsed."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from torch import nn

from vitconv.checks.base.check import Level
from vitconv.errors import UsageError
from vitconv.hosts.python import load
from vitconv.inits.base.coverage import MEANING, Covered, coverage


@dataclass(frozen=True)
class Missed:
    """Parameters of one kind: their names with the layers collapsed, how many, and what became of them."""

    names: str
    count: int
    module: str
    state: str
    before: str
    meaning: str
    level: Level


def missed(module: nn.Module, init_fn: str) -> tuple[Missed, ...]:
    """Run `python:package.module:function` over the network and tell what it misses, the worst first.

    A vector left at 1 or 0, such as a norm's or a bias, is worth knowing; what is left at random numbers, or held
    where no walk over parameters sees it, is missed.

    Raises:
        UsageError: no such function.
    """
    if not init_fn.startswith("python:"):
        raise UsageError(f"--init-fn {init_fn}: expected python:package.module:function")
    function = load(init_fn.removeprefix("python:"))
    return grouped(coverage(module, function))


def grouped(rows: Iterable[Covered]) -> tuple[Missed, ...]:
    """Collapse the layers of rows that say the same."""
    groups: dict[tuple[str, str, str, bool], list[Covered]] = {}
    for row in rows:
        template = re.sub(r"\.\d+\.", ".{i}.", row.name)
        groups.setdefault((template, row.module, row.state, _constant(row)), []).append(row)
    order = {"error": 0, "warn": 1, "info": 2, "ok": 3}
    found = [
        Missed(
            template if len(of) > 1 else of[0].name,
            len(of),
            module,
            state,
            of[0].before,
            MEANING[of[0].state],
            _level(of[0]),
        )
        for (template, module, state, _), of in groups.items()
    ]
    return tuple(sorted(found, key=lambda m: order[m.level]))


def _level(row: Covered) -> Level:
    if row.state == "left":
        return "info" if _constant(row) else "error"
    if row.state in ("partly", "outside", "replaced"):
        return "error"
    return "warn" if row.state in ("twice", "scaled") else "ok"


def _constant(row: Covered) -> bool:
    # A vector at 1 or 0 is a norm or a bias as every scheme has it; a table of positions at 0 is not.
    return row.before in ("0 everywhere", "1 everywhere") and len(row.shape) == 1
