"""Does the loss scale settle, or run to zero"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from vitconv.checks.base.check import Check, Finding, Limits, NotApplicable
from vitconv.checks.base.context import Context
from vitconv.checks.base.scaler import judge
from vitconv.checks.base.training import train

_TEXT = {
    "healthy": "no step is skipped",
    "settling": "only the first steps are skipped, while the scale is looked for: expected",
    "isolated": "single steps are skipped: expected, one in 2000 in the steady state",
    "collapse": "steps are skipped in a row and the scale runs down: gradients are not finite at any scale",
    "forward": "the forward pass itself is not finite, so the scale runs to 0 for nothing: no matter of the scale",
}


def run(context: Context, limits: Limits) -> Iterator[Finding]:
    """Train some steps in emulated float16 with GradScaler's rule, and judge the course of the scale."""
    if context.plan.precision != "amp-fp16":
        raise NotApplicable(f"the plan is {context.plan.precision}, which needs no loss scale")
    plan = dataclasses.replace(context.plan, steps=int(limits["steps"]), batch=min(context.plan.batch, 4))
    found = train(context.fresh(), context.data, plan, context.bridge)
    course = judge(found.steps, settle=int(limits["settle"]))
    level = "error" if course.verdict in ("collapse", "forward") else "ok"
    yield Finding(
        "error" if level == "error" else "ok",
        f"{_TEXT[course.verdict]}; {course.skipped:.0%} of {len(found.steps)} steps skipped, longest run "
        f"{course.longest}, "
        f"scale {course.scale:g} at the end",
        {"verdict": course.verdict, "skipped": course.skipped, "longest": course.longest, "scale": course.scale},
        advice="" if course.verdict != "forward" else "see fp16-headroom for the operator, and signals for float32",
    )


CHECK = Check(
    id="loss-scale",
    title="Does the loss scale settle, or run to zero?",
    measures="steps with a gradient that is not finite, under GradScaler's rule from 65536, over some steps of the "
    "planned "
    "training in emulated float16; forward and backward told apart",
    threshold="error when the forward pass is not finite, when more than 3 steps in a row are skipped after the "
    "scale had "
    "time to settle, or when it falls below 1. The first skips, and one in 2000, are how it works",
    advice="train in bfloat16, or compute the operator that fp16-headroom names in float32",
    cost="steps",
    run=run,
    limits={"steps": 24, "settle": 18},
    source="pytorch/pytorch, torch/amp/grad_scaler.py",
)
