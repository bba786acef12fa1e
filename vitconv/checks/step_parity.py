"""Do two networks stay the same when they are trained side by side, and where do they part"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torch import Tensor

from vitconv.checks.base.check import Check, Finding, Limits, NotApplicable, Undecided
from vitconv.checks.base.context import Context
from vitconv.checks.base.training import Moments, optimiser, train
from vitconv.errors import Refused
from vitconv.parity.bridge import state_of


def run(context: Context, limits: Limits) -> Iterator[Finding]:
    """Train both from the same weights on the same batches; then the second from the weights and moments of the first.

    A network that was trained for a while goes on in the other codebase: its optimiser's state has to come along.
    """
    other = context.other
    if other is None:
        raise NotApplicable("there is no second network: say --beside")
    if context.bridge is None or other.bridge is None:
        raise Undecided("the tensors of one of the two are not understood")
    start = context.bridge.read(state_of(context.network.module))
    left = _course(context, context, start, limits)
    right = _course(other, context, start, limits)
    yield _compared("from the start", start, left.first(int(limits["steps"])), right, limits["share"])
    try:
        moments = left.halfway.carried(
            context.bridge.match.dialect.name,
            other.bridge.match.dialect.name,
            (context.bridge.prefix, other.bridge.prefix),
            context.facts.known(),
        )
    except Refused as e:
        yield Finding("warn", f"AdamW's moments cannot be carried over: {e}")
        return
    middle = int(limits["steps"]) - 1
    rest = _course(other, context, left.weights[middle], limits, moments)
    gone = Course(left.losses[middle + 1 :], left.weights[middle + 1 :], left.halfway)
    yield _compared(
        f"going on after step {middle + 1}, AdamW's moments carried from {context.bridge.match.dialect.name} to "
        f"{other.bridge.match.dialect.name}",
        left.weights[middle],
        gone,
        rest,
        limits["share"],
    )


@dataclass(frozen=True)
class Course:
    """A training step by step: losses, canonical weights after each, and the optimiser's state halfway."""

    losses: tuple[float, ...]
    weights: list[dict[str, Tensor]]
    halfway: Moments

    def first(self, steps: int) -> Course:
        """Return its first steps."""
        return Course(self.losses[:steps], self.weights[:steps], self.halfway)


def _compared(what: str, start: Mapping[str, Tensor], left: Course, right: Course, share: float) -> Finding:
    curve, parted = [], None
    before = start
    for step, (a, b) in enumerate(zip(left.weights, right.weights, strict=False)):
        gaps = {}
        for name, x in a.items():
            update = float((x - before[name]).double().norm())
            # A softmax does not feel a constant added to every key: this gradient is rounding, and so is its sign.
            if update > 0 and not name.endswith(".attn.k.bias"):
                gaps[name] = float((x - b[name]).double().norm()) / update
        worst = max(gaps, key=lambda n: gaps[n])
        curve.append((float(step + 1), gaps[worst]))
        if parted is None and gaps[worst] > share:
            parted = (step + 1, worst, gaps[worst])
        before = a
    curves = {f"largest difference / update, {what}": tuple(curve)}
    losses = f"losses {left.losses[len(curve) - 1]:.6g} and {right.losses[len(curve) - 1]:.6g} at the end"
    if parted is None:
        largest = max(y for _, y in curve)
        return Finding(
            "ok", f"{what}: the same for {len(curve)} steps: largest difference {largest:.2g} of an update; {losses}",
            {"steps": len(curve), "largest": largest}, curves=curves, axes=("step", "share"),
        )  # fmt: skip
    step, name, gap = parted
    return Finding(
        "error",
        f"{what}: they part at step {step}, in {name} first: {gap:.2%} of the update (limit {share:.0%}); {losses}",
        {"step": step, "parameter": name, "share": gap},
        (name,),
        "run vitconv verify on the two: forward and backward passes tell why",
        curves,
        ("step", "share"),
    )


def _course(
    of: Context,
    first: Context,
    start: Mapping[str, Tensor],
    limits: Limits,
    moments: Moments | None = None,
) -> Course:
    """Train twice the number of steps from a start; or, with moments, the second half only."""
    assert of.bridge is not None
    bridge, built = of.bridge, of.fresh()
    # Random sites draw in another order in each codebase, so they are off.
    built.module.eval()
    bridge.write(start, state_of(built.module))
    half = int(limits["steps"])
    plan = dataclasses.replace(first.plan, steps=2 * half, precision="fp32", warmup=2)
    plan = dataclasses.replace(plan, mixup=0.0, cutmix=0.0)
    optim = optimiser(built.module, bridge, plan)
    if moments is not None:
        optim.load(built.module, moments)
    seen: list[dict[str, Tensor]] = []
    halfway: list[Moments] = []

    def watch(step: int) -> bool:
        seen.append(bridge.read(state_of(built.module)))
        if step == half - 1:
            halfway.append(optim.state(built.module))
        return False

    data = first.data.fitted(built.inputs)
    run = train(built, data, plan, bridge, watch=watch, optim=optim, skip=half if moments is not None else 0)
    return Course(run.losses, seen, halfway[0] if halfway else Moments(0, {}, {}))


CHECK = Check(
    id="step-parity",
    title="Do two networks stay the same when they are trained side by side?",
    measures="largest, over parameters, of the difference of the two after a step over the size of the step's update, "
    "in canonical names; same weights, batches and optimiser by role on both sides, dropout off, float32. Then the "
    "second goes on from where the first is halfway, with AdamW's moments carried through the layouts",
    threshold="error above 20 % of an update: Adam's first steps are signs of gradients, so rounding alone flips those "
    "near zero, and a real difference is of the size of the update",
    advice="run vitconv verify on the two",
    cost="steps",
    run=run,
    limits={"steps": 5, "share": 0.2},
)
