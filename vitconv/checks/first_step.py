"""How far does the first optimiser step move the weights"""

from __future__ import annotations

import math
from collections.abc import Iterator

from vitconv.checks.base.check import Check, Finding, Limits
from vitconv.checks.base.context import Context
from vitconv.checks.base.gated import small_start
from vitconv.checks.base.plan import Plan
from vitconv.inits.audit.measure import even

# Elements of a matrix that are looked at: an RMS of independent ones is known to 0.3 %.
SAMPLE = 1 << 16
NEARLY_ZERO = 1e-3


def run(context: Context, limits: Limits) -> Iterator[Finding]:
    """Compare Adam's first step, which is lr by every element, with the size of the weights; and gradients with eps."""
    plan, rows = context.plan, []
    for name, grad in context.signals.grads.items():
        weight = context.weights.get(name) if context.weights is not None else None
        if weight is None or weight.dim() < 2:
            continue
        g = even(grad.reshape(-1), SAMPLE).double()
        w = float(even(weight.reshape(-1), SAMPLE).double().square().mean().sqrt())
        moved = float((g / (g.abs() + plan.eps)).square().mean().sqrt())
        # What starts at nearly 0, as BEiT's head and timm's registers do, is to grow: its share means nothing.
        if w > NEARLY_ZERO:
            rows.append((name, moved * plan.lr_at(0) / w, moved * plan.lr / w, float(g.square().mean().sqrt())))
    if not rows:
        yield Finding("info", "no weight matrix is known by its role")
        return
    first, peak = max(rows, key=lambda r: r[1]), max(rows, key=lambda r: r[2])
    level = "warn" if first[1] > limits["warn"] else "ok"
    yield Finding(
        "warn" if level == "warn" else "ok",
        f"the first step moves {first[0]} by {first[1]:.2%} of its size (lr {plan.lr_at(0):.2g}, warm-up "
        f"{plan.warmup}; limit "
        f"{limits['warn']:.0%}); at the peak lr {plan.lr:g} a step of Adam would be {peak[2]:.2%}",
        {"first": first[1], "peak": peak[2], "tensor": first[0]},
        (first[0],) if level == "warn" else (),
    )
    if Plan.warmup != plan.warmup >= plan.steps:
        yield Finding(
            "warn",
            f"the warm-up takes {plan.warmup} steps and the training {plan.steps}: the peak lr {plan.lr:g} is never "
            f"reached, the last step has {plan.lr_at(plan.steps - 1):.3g}",
            {"warmup": plan.warmup, "steps": plan.steps},
            advice="count both in optimiser steps: warm-up in epochs times the batches of an epoch, over accumulation",
        )
    low = [r[0] for r in rows if 0 < r[3] < limits["eps"] * plan.eps]
    if low:
        small = small_start(context)
        yield Finding(
            "info" if small else "warn",
            f"the gradients of {len(low)} tensors are below {limits['eps']:g} eps = {limits['eps'] * plan.eps:g}: "
            "Adam's eps, not "
            "their size, decides their step" + (f"; {small}, by design" if small else ""),
            {"tensors": len(low)},
            tuple(low[:8]),
            "a smaller eps, or a loss that is not divided twice",
        )
    scales = [n for n in (context.weights or {}) if n.endswith((".ls1", ".ls2"))]
    for name in scales[:1]:
        gamma = float((context.weights or {})[name].double().abs().mean())
        if 0 < gamma < plan.lr:
            yield Finding(
                "info",
                f"LayerScale starts at {gamma:.2g} and one step of lr {plan.lr:g} is {plan.lr / gamma:.0f} times "
                "that: it grows "
                f"to about {plan.lr * plan.warmup / 2:.2g} within the warm-up whatever it starts at",
                {"gamma": gamma},
            )
    if not math.isfinite(first[1]):
        yield Finding("error", f"the first step of {first[0]} is not finite", where=(first[0],))


CHECK = Check(
    id="first-step",
    title="How far does the first optimiser step move the weights?",
    measures="RMS of Adam's first step, lr g/(|g| + eps), over the RMS of the weight, at the warm-up's first lr and "
    "at the peak; "
    "RMS of the gradients against eps",
    threshold="warn above 1 % in the first step (lr 1e-3 on weights of .02 is 5 %, so warm-up is needed), when "
    "gradients are below 10 eps, and when a warm-up that is asked for outlasts the planned steps",
    advice="a warm-up, or a lower learning rate",
    cost="pass",
    run=run,
    limits={"warn": 0.01, "eps": 10.0},
    source="Kingma and Ba, Adam, 2015; Wortsman et al., 2023",
)
