"""Learning rates that are never reached: a warm-up counted in other units than the training (L)."""

from __future__ import annotations

import pytest

from vitconv.checks.base.plan import Plan
from vitconv.checks.base.run import run_one
from vitconv.checks.base.target import Wanted, context_of
from vitconv.registry import CHECKS, load

SMALL = ("dim=48", "heads=3", "depth=2", "image=16", "patch=4", "classes=10")


@pytest.mark.parametrize(
    ("warmup", "steps", "level"),
    [
        pytest.param(400, 300, "warn", id="longer"),
        pytest.param(300, 300, "warn", id="as-long"),
        pytest.param(40, 30, "ok", id="the-usual-one-of-a-short-trial"),
        pytest.param(100, 300, "ok", id="shorter"),
    ],
)
def test_a_warm_up_that_outlasts_the_training(warmup: int, steps: int, level: str) -> None:
    context = context_of("vit_tiny", Wanted(SMALL, plan=Plan(batch=2, lr=1e-4, warmup=warmup, steps=steps)))
    found = run_one(context, load(CHECKS, "first-step"))
    assert found.level == level
    assert any("never reached" in f.text for f in found.findings) == (level == "warn")
