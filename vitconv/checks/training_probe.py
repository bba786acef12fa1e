"""Does a short training on real images train, stick, collapse or diverge; and which of several variants does"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from vitconv.checks.base.check import Check, Finding, Level, Limits, Undecided
from vitconv.checks.base.context import Context
from vitconv.checks.base.training import Run
from vitconv.checks.base.variants import Tried, named, smaller, trial
from vitconv.errors import Refused, UsageError


def run(context: Context, limits: Limits) -> Iterator[Finding]:
    """Train the network, or a small one of its depth and kind, with and without warm-up; or every variant asked for."""
    plan = dataclasses.replace(context.plan, batch=max(context.plan.batch, int(limits["batch"])))
    context = dataclasses.replace(context, plan=plan)
    warmups = {int(axes["warmup"]) for axes in context.vary if "warmup" in axes} or {plan.warmup}
    if min(warmups) >= plan.steps:
        raise Undecided(
            f"the warm-up takes {min(warmups)} steps and the training {plan.steps}: it ends before the peak learning "
            "rate; give more --steps, or a shorter warmup in a recipe"
        )
    yield from _grid(context, limits) if context.vary else _alone(context, limits)


def _alone(context: Context, limits: Limits) -> Iterator[Finding]:
    small, said = scaled_down(context, limits)
    tried = trial(small, {})
    runs = {"as planned": tried.planned}
    if tried.without is not None:
        runs["without warm-up"] = tried.without
    for name, found in runs.items():
        level: Level = "ok" if found.verdict == "trains" else "error"
        if level == "error" and name != "as planned" and tried.planned.verdict == "trains":
            level = "info"
        needs = "; it needs its warm-up" if level == "info" else ""
        yield Finding(
            level,
            f"{name}: {found.verdict}{needs}; {_course(found)} at lr {small.plan.lr:g} on {small.data.origin} ({said})",
            {"verdict": found.verdict, "last": found.last, "best": found.best, "steps": len(found.losses)},
            curves={name: _points(found)},
            axes=("step", "loss"),
        )


def _grid(context: Context, limits: Limits) -> Iterator[Finding]:
    """Train every variant; an error when none trains, since the others are there to be compared with."""
    done: list[Tried] = []
    refused: list[tuple[str, str]] = []
    for axes in context.vary:
        try:
            small = smaller(context, int(limits["width"]), int(limits["depth"]), axes)
        except (Refused, UsageError) as e:
            refused.append((named(axes), " ".join(str(e).split())))
            continue
        done.append(trial(small, axes))
    if not done:
        raise Undecided("no variant can be built: " + "; ".join(f"{name}: {reason}" for name, reason in refused))
    good = [t.name for t in done if t.verdict in ("trains", "needs warm-up")]
    plan = context.plan
    recipe = f"lr {plan.lr:g}, warm-up {plan.warmup} of {plan.steps} steps, batch {plan.batch}"
    recipe += f", mixup {plan.mixup:g}, cutmix {plan.cutmix:g}" if plan.mixup or plan.cutmix else ""
    yield Finding(
        "ok" if good else "error",
        f"{len(good)} of {len(done)} variants train at width {limits['width']:g} ({recipe})"
        f"{': ' * bool(good)}{'; '.join(good)}",
        {"trains": len(good), "variants": len(done)},
        curves={t.name: _points(t.planned) for t in done},
        axes=("step", "loss"),
    )
    for t in done:
        without = f"; without warm-up: {t.without.verdict}" if t.without is not None else ""
        yield Finding(
            "ok" if t.verdict == "trains" else "info",
            f"{t.name}: {t.verdict}; {_course(t.planned)}{without}",
            {**t.axes, "verdict": t.verdict, "last": t.planned.last, "best": t.planned.best},
        )
    for name, reason in refused:
        yield Finding("info", f"{name}: not built: {reason}", {"verdict": "refused"})


def _course(found: Run) -> str:
    kind = "loss of plain images" if found.plain else "loss"
    return (
        f"{kind} {found.judged[0]:.3f} to {found.last:.3f}, lowest {found.best:.3f}, guessing {found.guess:.3f}, in "
        f"{len(found.losses)} steps"
    )


def _points(found: Run) -> tuple[tuple[float, float], ...]:
    every = max(1, len(found.losses) // len(found.judged))
    return tuple((float(i * every), x) for i, x in enumerate(found.judged))


def scaled_down(context: Context, limits: Limits) -> tuple[Context, str]:
    """Return a network that trains in a minute: the context's own when it is small and has data, else one like it."""
    count = sum(p.numel() for p in context.network.module.parameters())
    if context.data.real and count <= limits["parameters"]:
        plan = dataclasses.replace(context.plan, precision="fp32")
        return dataclasses.replace(context, plan=plan), "the network itself"
    width = int(limits["width"])
    small = smaller(context, width, int(limits["depth"]))
    return small, f"a network of its depth, norms and init at width {width}"


CHECK = Check(
    id="training-probe",
    title="Does a short training train?",
    measures="the loss over the planned schedule in float32, with and without warm-up, of the network itself when it "
    "is small, else of one with its depth, norm placement, eps, keys and values, and init at width 48, on the data or "
    "on digits. With --vary, of every combination of the values given: norm, init, eps, release, precision, depth, lr, "
    "warmup, kv_normalised. Mixup and cutmix are timm's; then the loss of images that are not mixed is judged",
    threshold="of the loss of guessing, the entropy of the labels (ln C where classes are as frequent): trains: below "
    "0.93 at the end; needs warm-up: trains with and not without; stuck: never below 0.9; collapses: was below and is "
    "back; diverges: not finite, or twice. Info when only the run without "
    "warm-up fails; of several variants, error when none trains",
    advice="read the checks before it: gradient-profile for stuck, facts, stream-growth and attention for collapses, "
    "first-step for diverges",
    cost="training",
    run=run,
    limits={"parameters": 3e6, "width": 48, "depth": 24, "batch": 32},
)
