"""What a stage of the verification found."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Status = Literal["ok", "info", "skip", "warn", "fail"]
Blame = Literal["differs", "undecided"]

_SEVERITY: tuple[Status, ...] = ("skip", "info", "ok", "warn", "fail")


@dataclass(frozen=True)
class Row:
    """One finding: its name, how it stands, a sentence, and its figures by name.

    `blame` says what a failing row makes of the verdict.
    """

    name: str
    status: Status
    detail: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)
    blame: Blame = "differs"


@dataclass(frozen=True)
class Stage:
    """One stage.

    Attributes:
        key: its name for `--skip`; title: in words.
        status: the worst of its rows.
        rows: what was looked at.
        notes: what is to be said about all of it.
        seconds: how long it took; runs: how many forward (and backward) passes.
        why_skipped: the reason, or None when it ran.
        data: series for charts and tables: {name: list or mapping of figures}.
    """

    key: str
    title: str
    status: Status
    rows: tuple[Row, ...] = ()
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    runs: int = 0
    why_skipped: str | None = None
    data: Mapping[str, Any] = field(default_factory=dict)

    @property
    def failures(self) -> tuple[Row, ...]:
        """The rows that fail."""
        return tuple(r for r in self.rows if r.status == "fail")

    @property
    def differences(self) -> tuple[Row, ...]:
        """The rows that fail by what was measured, not by what this machine cannot show."""
        return tuple(r for r in self.failures if not r.name.endswith(AS_ON_CUDA))


def stage(
    key: str, title: str, rows: Iterable[Row], notes: Iterable[str] = (), data: Mapping[str, Any] | None = None
) -> Stage:
    """Return a stage whose status is the worst of its rows; one that looked at nothing fails."""
    rows = tuple(rows) or (Row(key, "fail", "nothing was compared", blame="undecided"),)
    worst = max((r.status for r in rows), key=_SEVERITY.index)
    return Stage(key, title, worst, rows, tuple(dict.fromkeys(notes)), data=data or {})


def more_rows(found: Stage, rows: Iterable[Row]) -> Stage:
    """Return a stage with further rows."""
    whole = stage(found.key, found.title, (*found.rows, *rows), found.notes, found.data)
    return dataclasses.replace(whole, seconds=found.seconds, runs=found.runs)


# Names of rows that the verdict asks for, behind the side's label.
OWN_AUTOCAST = "autocast of its own"
AS_ON_CUDA = "as on CUDA"


def skipped(key: str, title: str, why: str) -> Stage:
    """Return a stage that did not run, and why."""
    return Stage(key, title, "skip", why_skipped=why)


def short(value: float) -> str:
    """Return a figure as people write it: 1.2e-06, or "not finite"."""
    return f"{value:.2g}" if math.isfinite(value) else "not finite"
