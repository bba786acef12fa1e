"""Can the network learn one batch by heart"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from vitconv.checks.base.check import Check, Finding, Limits, NotApplicable
from vitconv.checks.base.context import Context
from vitconv.checks.base.training import train


def run(context: Context, limits: Limits) -> Iterator[Finding]:
    """Train on one batch, without decay, dropout and warm-up, until the loss is a tenth."""
    if not context.signals.logits:
        raise NotApplicable("it gives no logits [b o]")
    built = context.fresh()
    built.module.eval()
    images, labels = context.data.batch(min(16, len(context.data.images)))
    data = dataclasses.replace(context.data, images=images, labels=labels)
    lr = min(context.plan.lr, 1e-3)
    plan = dataclasses.replace(
        context.plan, batch=len(images), steps=int(limits["steps"]), warmup=5, lr=lr, decay=0.0, precision="fp32"
    )
    losses: list[float] = []
    found = train(built, data, plan, context.bridge)
    losses += found.losses
    start, end = losses[0], min(losses)
    # What the head's bias alone can reach.
    guess = data.guess
    level = "ok" if end < limits["learnt"] * start else "error" if end > limits["stuck"] * guess else "warn"
    yield Finding(
        "ok" if level == "ok" else "error" if level == "error" else "warn",
        f"one batch of {len(images)}: loss {start:.3g} to {end:.3g} in {len(losses)} steps (learnt below "
        f"{limits['learnt']:g} of the start, stuck above {limits['stuck']:g} of the labels' entropy {guess:.3g})",
        {"start": start, "end": end, "steps": len(losses)},
        curves={"loss": tuple((float(i), x) for i, x in enumerate(losses))},
        axes=("step", "loss"),
    )


CHECK = Check(
    id="overfit",
    title="Can the network learn one batch by heart?",
    measures="loss on one batch of up to 16 examples under AdamW, without decay, dropout and augmentation",
    threshold="learnt: below a tenth of the start; error when it stays above 0.9 of the entropy of its labels, "
    "which is how a post-norm stack of 24 blocks looks",
    advice="run gradient-profile and signals, and see that images and labels reach the loss",
    cost="steps",
    run=run,
    limits={"learnt": 0.1, "stuck": 0.9, "steps": 200},
    source="Karpathy, A recipe for training neural networks, 2019",
)
