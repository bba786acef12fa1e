"""Can gains that alone decide how large a branch is, and start near 0, grow far enough in the steps planned"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from statistics import median

from vitconv.checks.base.check import Check, Finding, Limits, NotApplicable
from vitconv.checks.base.context import Context

# By placement: what a branch is multiplied by, where nothing else brings its size back.
_GAINS = {"res-post": (".norm1.weight", ".norm2.weight"), "none": (".ls1", ".ls2")}


def run(context: Context, limits: Limits) -> Iterator[Finding]:
    """Bound the gains by the sum of the learning rates: Adam moves an element by lr in a step."""
    gains = _GAINS.get(context.placement or "")
    if gains is None:
        raise NotApplicable("no norm ends a branch, so no gain alone decides how large the branch is")
    if context.trained:
        raise NotApplicable("the weights are trained")
    sizes = [float(t.abs().double().mean()) for n, t in context.canonical.items() if n.endswith(gains)]
    if not sizes:
        raise NotApplicable("the branches have neither norms nor gains")
    start = median(sizes)
    if start >= limits["open"]:
        yield Finding("ok", f"the branches start at a gain of {start:.3g}", {"start": start})
        return
    plan = context.plan
    sums = list(accumulate(plan.lr_at(step) for step in range(plan.steps)))
    reach = start + (sums[-1] if sums else 0.0)
    warm = start + (sums[min(plan.warmup, len(sums)) - 1] if sums and plan.warmup else 0.0)
    when = next((step + 1 for step, total in enumerate(sums) if start + total >= limits["open"]), None)
    opened = f"step {when} at the earliest" if when else "no step of this plan"
    yield Finding(
        "info",
        f"{len(sizes)} gains start at {start:.3g}, and the learning rates of {plan.steps} steps sum to "
        f"{reach - start:.3g}: no gain can pass {reach:.3g} ({warm:.3g} at the end of the warm-up), and "
        f"{limits['open']:g} is reached at {opened}. Where branches are needed early, the training is slow until then",
        {"start": start, "reach": reach, "warmup": warm, "step": when or 0},
        advice="if the loss does not move: more steps, a higher learning rate, or a start of .1; training-probe tells; "
        "say how many steps are planned",
        curves={"largest possible gain": tuple((float(i), start + x) for i, x in enumerate(sums))},
        axes=("step", "gain"),
    )


CHECK = Check(
    id="gate-growth",
    title="How soon can gains that start near 0 open within the plan?",
    measures="res-post-norm, x + norm(f(x)): the gain alone is the size of a branch; and ReZero, x + a f(x) without "
    "norms. Median gain at the start plus the sum of the learning rates over the plan, which is as far as Adam takes "
    "an element",
    threshold="nothing fails: told where gains start below 0.1, with the step at which they can be there. Trainings "
    "that learnt less than half of what the same network learns from a start of .1 all had rates that sum to less "
    "than 0.1, but most with such sums were not held back: on digits in 4 patches no sum down to .015 did harm, in 16 "
    "patches those of .06 to .09 did. So the bound is needed and not enough to warn (docs/opening.md). LayerScale from "
    "0 on a pre-norm branch costs nothing, as its branch grows by its weights too",
    advice="more steps, or a start of .1",
    cost="facts",
    run=run,
    limits={"open": 0.1},
    source="Kingma and Ba, Adam, 2015, section 2.1; Liu et al., Swin Transformer V2, 2021; trainings on digits",
)
