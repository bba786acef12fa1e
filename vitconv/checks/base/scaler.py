"""The loss scale of a training in float16, and what its course says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["clean", "overflow", "forward"]


@dataclass
class Scaler:
    """torch.amp.GradScaler's rule: halve on a gradient that is not finite, double after `interval` clean steps."""

    scale: float = 65536.0
    interval: int = 2000
    clean: int = 0

    def update(self, overflowed: bool) -> None:
        """Take one step."""
        if overflowed:
            self.scale, self.clean = self.scale * 0.5, 0
        else:
            self.clean += 1
            if self.clean == self.interval:
                self.scale, self.clean = self.scale * 2.0, 0


@dataclass(frozen=True)
class Course:
    """What a run of steps shows: the verdict, the share of skipped steps, the longest run of skips, the last scale."""

    verdict: Literal["healthy", "settling", "isolated", "collapse", "forward"]
    skipped: float
    longest: int
    scale: float


def judge(steps: Sequence[Kind], *, settle: int = 20, start: float = 65536.0) -> Course:
    """Judge a course of steps.

    forward: the forward pass itself is not finite, so no scale can help and the scale runs to 0. settling: all skips
    are in the first `settle` steps, while the scale is looked for. isolated: single skips, as doubling causes one
    in 2000. collapse: more than 3 in a row later, or a scale below 1.
    """
    scaler = Scaler(start)
    run = longest = late = 0
    for i, kind in enumerate(steps):
        bad = kind != "clean"
        scaler.update(bad)
        run = run + 1 if bad else 0
        longest = max(longest, run)
        late = max(late, run if i >= settle else 0)
    skipped = sum(kind != "clean" for kind in steps) / max(1, len(steps))
    if "forward" in steps:
        verdict = "forward"
    elif scaler.scale < 1.0 or late > 3:
        verdict = "collapse"
    elif skipped == 0.0:
        verdict = "healthy"
    elif late == 0:
        verdict = "settling"
    else:
        verdict = "isolated"
    return Course(verdict, skipped, longest, scaler.scale)  # type: ignore[arg-type]
