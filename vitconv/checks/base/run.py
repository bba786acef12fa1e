"""Run checks on a context, cheap to dear, and judge the whole."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from vitconv.checks.base.check import COSTS, Check, Finding, Level, NotApplicable, Undecided, worst
from vitconv.checks.base.context import Context
from vitconv.errors import Refused, UsageError, by_foreign_code, in_a_line
from vitconv.registry import CHECKS, load_all, unknown

# Without being asked for, what trains is not run.
STATIC = ("facts", "pass", "half")


@dataclass(frozen=True)
class Outcome:
    """What one check found; `skipped` says why it found nothing, `undecided` whether it should have."""

    check: Check
    findings: tuple[Finding, ...] = ()
    skipped: str = ""
    undecided: bool = False
    seconds: float = 0.0

    @property
    def level(self) -> Level:
        """Return the most severe level."""
        return worst(self.findings)


def all_checks() -> tuple[Check, ...]:
    """Return every check, cheap to dear."""
    order = list(COSTS)
    found: Iterable[Check] = load_all(CHECKS).values()
    return tuple(sorted(found, key=lambda c: (order.index(c.cost), c.id)))


def chosen(only: Iterable[str] = (), skip: Iterable[str] = (), *, trainings: bool = False) -> tuple[Check, ...]:
    """Return the checks to run: those named, or all static ones; with `trainings` all.

    Raises:
        UsageError: no check has this name.
    """
    known = {c.id: c for c in all_checks()}
    wanted, left = tuple(only), tuple(skip)
    for name in (*wanted, *left):
        if name not in known:
            raise unknown("check", name, tuple(known))
    if wanted:
        picked = [c for c in known.values() if c.id in wanted]
    else:
        picked = [c for c in known.values() if trainings or c.cost in STATIC]
    return tuple(c for c in picked if c.id not in left)


def limits_of(check: Check, changes: Mapping[str, float]) -> dict[str, float]:
    """Return the thresholds of a check with some changed.

    Raises:
        UsageError: the check has no such threshold.
    """
    wrong = sorted(set(changes) - set(check.limits))
    if wrong:
        known = ", ".join(check.limits) or "none"
        raise UsageError(f"check {check.id} has no threshold {', '.join(wrong)}; it has: {known}")
    return {**check.limits, **{k: float(v) for k, v in changes.items()}}


def run_checks(
    context: Context,
    checks: Iterable[Check],
    *,
    limits: Mapping[str, Mapping[str, float]] | None = None,
    progress: Callable[[str], None] | None = None,
) -> tuple[Outcome, ...]:
    """Run the checks in order.

    Raises:
        UsageError: `limits` names no check, or a threshold that a check does not have.
    """
    known = [c.id for c in all_checks()]
    for name in limits or {}:
        if name not in known:
            raise unknown("check", name, known)
    out = []
    for check in checks:
        if progress is not None:
            progress(check.id)
        out.append(run_one(context, check, (limits or {}).get(check.id, {})))
    return tuple(out)


def run_one(context: Context, check: Check, limits: Mapping[str, float] | None = None) -> Outcome:
    """Run one check."""
    held = limits_of(check, limits or {})
    start = time.perf_counter()
    try:
        findings = tuple(check.run(context, held))
    except NotApplicable as e:
        return Outcome(check, skipped=str(e), seconds=time.perf_counter() - start)
    except (Undecided, Refused) as e:
        return Outcome(check, skipped=str(e), undecided=True, seconds=time.perf_counter() - start)
    # A network that is the user's may end with anything; SystemExit would end vitconv without a word.
    except (Exception, SystemExit) as e:
        if not by_foreign_code(e):
            raise
        said = f"the network ends with an error: {in_a_line(e)}"
        return Outcome(check, skipped=said, undecided=True, seconds=time.perf_counter() - start)
    return Outcome(check, findings, seconds=time.perf_counter() - start)


def verdict(outcomes: Iterable[Outcome]) -> tuple[str, int]:
    """Return the verdict in a word, and the exit code: 1 for an error, 3 when checks that matter could not be run."""
    rows = tuple(outcomes)
    level = worst(tuple(f for o in rows for f in o.findings))
    if level == "error":
        return "will not train", 1
    if any(o.undecided for o in rows) or not any(o.findings for o in rows):
        return "undecided", 3
    return ("look at the warnings" if level == "warn" else "ready to train"), 0
