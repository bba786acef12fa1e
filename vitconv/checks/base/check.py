"""What a check is, and what it finds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from vitconv.checks.base.context import Context

Level = Literal["ok", "info", "warn", "error"]
LEVELS: tuple[Level, ...] = ("ok", "info", "warn", "error")
Points = tuple[tuple[float, float], ...]
Limits = Mapping[str, float]

# What a check costs, cheap to dear, and what that means.
COSTS: Mapping[str, str] = MappingProxyType(
    {
        "facts": "reads facts and weights",
        "pass": "shares one forward and backward pass in float32",
        "half": "one forward pass and a few backward passes in emulated half precision",
        "steps": "some optimiser steps on one batch",
        "training": "several short trainings",
    }
)


class NotApplicable(Exception):
    """Raised by a check that has nothing to say about this network; the text says why."""


class Undecided(Exception):
    """Raised by a check that would have something to say and cannot be run; the text says what is lacking."""


@dataclass(frozen=True)
class Finding:
    """One finding.

    Attributes:
        level: error: a training will not work, or not as meant; warn: look at it; info: worth knowing.
        text: what was found, with figures and the limit it was held against.
        figures: the numbers, by name.
        where: canonical names, or module names, that it speaks of.
        advice: what to do; "" takes the check's own.
        curves: {name: points}, what a plot shows; all of one finding share their axes.
        axes: what the axes of the curves are.
        linear: never on a scale of powers of ten, as exponents and shares are.
    """

    level: Level
    text: str
    figures: Mapping[str, Any] = field(default_factory=dict)
    where: tuple[str, ...] = ()
    advice: str = ""
    curves: Mapping[str, Points] = field(default_factory=dict)
    axes: tuple[str, str] = ("block", "")
    linear: bool = False


@dataclass(frozen=True)
class Check:
    """One check.

    Attributes:
        id: its name.
        title: what it answers, as a question.
        measures: what is measured, with the formula.
        threshold: where it warns and fails, and why there.
        advice: what to do about it.
        cost: a key of `COSTS`.
        run: `run(context, limits)` yields findings; raises NotApplicable or Undecided.
        limits: the thresholds by name, which a recipe can change.
        source: where the criterion comes from.
    """

    id: str
    title: str
    measures: str
    threshold: str
    advice: str
    cost: str
    run: Callable[[Context, Limits], Iterator[Finding]]
    limits: Limits = field(default_factory=dict)
    source: str = ""

    @property
    def name(self) -> str:
        """Return the id: what the registry knows it by."""
        return self.id


def worst(findings: tuple[Finding, ...]) -> Level:
    """Return the most severe level; "ok" if there is none."""
    return max((f.level for f in findings), key=LEVELS.index, default="ok")


def graded(value: float, warn: float, error: float) -> Level:
    """Return the level of a value that should be small."""
    return "error" if not value <= error else "warn" if value > warn else "ok"
