"""Do two networks stay the same when they are trained side by side, and where do they part"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

from torch import Tensor

from vitconv.checks.base.check import Check, Finding, Limits, NotApplicable, Undecided
from vitconv.checks.base.context import Context
from vitconv.checks.base.training import Run, train
from vitconv.parity.bridge import state_of


def run(context: Context, limits: Limits) -> Iterator[Finding]:
    """Train both from the same weights on the same batches, and compare their canonical weights after every step."""
    other = context.other
    if other is None:
        raise NotApplicable("there is no second network: say --beside")
    if context.bridge is None or other.bridge is None:
        raise Undecided("the tensors of one of the two are not understood")
    start = context.bridge.read(state_of(context.network.module))
    left, right = _course(context, context, start, limits), _course(other, context, start, limits)
    curve, parted = [], None
    before = start
    for step, (a, b) in enumerate(zip(left[1], right[1], strict=True)):
        gaps = {}
        for name, x in a.items():
            update = float((x - before[name]).double().norm())
            # A softmax does not feel a constant added to every key: this gradient is rounding, and so is its sign.
            if update > 0 and not name.endswith(".attn.k.bias"):
                gaps[name] = float((x - b[name]).double().norm()) / update
        worst = max(gaps, key=lambda n: gaps[n])
        curve.append((float(step + 1), gaps[worst]))
        if parted is None and gaps[worst] > limits["share"]:
            parted = (step + 1, worst, gaps[worst])
        before = a
    curves = {"largest difference / update": tuple(curve)}
    losses = f"losses {left[0].losses[-1]:.6g} and {right[0].losses[-1]:.6g} at the end"
    if parted is None:
        yield Finding(
            "ok", f"the same for {len(curve)} steps: largest difference {max(y for _, y in curve):.2g} of an "
            f"update; {losses}",
            {"steps": len(curve), "largest": max(y for _, y in curve)}, curves=curves, axes=("step", "share"),
        )  # fmt: skip
    else:
        step, name, gap = parted
        yield Finding(
            "error",
            f"they part at step {step}, in {name} first: {gap:.2%} of the update (limit {limits['share']:.0%}); "
            f"{losses}",
            {"step": step, "parameter": name, "share": gap},
            (name,),
            "run vitconv verify on the two: forward and backward passes tell why",
            curves,
            ("step", "share"),
        )


def _course(
    of: Context, first: Context, start: Mapping[str, Tensor], limits: Limits
) -> tuple[Run, list[dict[str, Tensor]]]:
    assert of.bridge is not None
    bridge, built = of.bridge, of.fresh()
    # Random sites draw in another order in each codebase, so they are off.
    built.module.eval()
    bridge.write(start, state_of(built.module))
    seen: list[dict[str, Tensor]] = []

    def watch(_step: int) -> bool:
        seen.append(bridge.read(state_of(built.module)))
        return False

    plan = dataclasses.replace(first.plan, steps=int(limits["steps"]), precision="fp32", warmup=2)
    data = first.data.fitted(built.inputs)
    return train(built, data, plan, bridge, watch=watch), seen


CHECK = Check(
    id="step-parity",
    title="Do two networks stay the same when they are trained side by side?",
    measures="largest, over parameters, of the difference of the two after a step over the size of the step's "
    "update, in "
    "canonical names; same weights, batches and optimiser by role on both sides, dropout off, float32",
    threshold="error above 20 % of an update: Adam's first steps are signs of gradients, so rounding alone flips "
    "those near "
    "zero, and a real difference is of the size of the update",
    advice="run vitconv verify on the two",
    cost="steps",
    run=run,
    limits={"steps": 5, "share": 0.2},
)
