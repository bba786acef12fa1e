"""Does a short training on real images train, stick, collapse or diverge"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from vitconv.checks.base.check import Check, Finding, Level, Limits
from vitconv.checks.base.context import Context
from vitconv.checks.base.data import digits
from vitconv.checks.base.target import Wanted, context_of
from vitconv.checks.base.training import train

_LEVEL: dict[str, Level] = {"trains": "ok", "stuck": "error", "collapses": "error", "diverges": "error"}


def run(context: Context, limits: Limits) -> Iterator[Finding]:
    """Train the network, or a small one of its depth and kind, as planned and without warm-up."""
    small, said = scaled_down(context, limits)
    plan = dataclasses.replace(context.plan, batch=max(context.plan.batch, int(limits["batch"])), precision="fp32")
    variants = {"as planned": plan}
    if plan.warmup > 1:
        variants["without warm-up"] = dataclasses.replace(plan, warmup=1)
    verdicts = {}
    for name, chosen in variants.items():
        found = train(small.fresh(), small.data, chosen, small.bridge)
        verdicts[name] = found.verdict
        level: Level = _LEVEL[found.verdict]
        if level == "error" and name != "as planned":
            level = "info" if verdicts["as planned"] == "trains" else "error"
        needs = "; it needs its warm-up" if level == "info" else ""
        yield Finding(
            level,
            f"{name}: {found.verdict}{needs}; loss {found.losses[0]:.3f} to {found.last:.3f}, lowest "
            f"{found.best:.3f}, ln C "
            f"{found.guess:.3f}, in {len(found.losses)} steps at lr {chosen.lr:g} on {small.data.origin} ({said})",
            {"verdict": found.verdict, "last": found.last, "best": found.best, "steps": len(found.losses)},
            curves={name: tuple((float(i), x) for i, x in enumerate(found.losses))},
            axes=("step", "loss"),
        )


def scaled_down(context: Context, limits: Limits) -> tuple[Context, str]:
    """Return a network that trains in a minute: the context's own when it is small and has data, else one like it."""
    count = sum(p.numel() for p in context.network.module.parameters())
    if context.data.real and count <= limits["parameters"]:
        return context, "the network itself"
    arch, facts = context.arch, context.facts
    placement = arch.placement or "pre"
    width = int(limits["width"])
    sets = [f"depth={min(arch.depth, int(limits['depth']))}", f"dim={width}", "heads=3", "patch=2", "image=8"]
    sets += ["channels=1", "classes=10", f"norm={placement}"]
    sets += [
        f"{k}={v}" for k, v in (("norm_eps", facts.norm_eps), ("kv_normalised", facts.kv_normalised)) if v is not None
    ]
    scheme = context.scheme or context.audit.fits[0].scheme.name
    data = context.data if context.data.real else digits()[0]
    wanted = Wanted(tuple(sets), scheme=scheme, data=data, plan=context.plan, seed=context.plan.seed)
    return context_of("vit_tiny", wanted), f"a network of its depth, norms and init at width {width}"


CHECK = Check(
    id="training-probe",
    title="Does a short training train?",
    measures="the loss over the planned schedule in float32, with and without warm-up, of the network itself when "
    "it is small, "
    "else of one with its depth, norm placement, eps, keys and values, and init at width 48, on the data or on digits",
    threshold="trains: below 0.93 ln C at the end; stuck: never below 0.9 ln C; collapses: was below and is back; "
    "diverges: not "
    "finite, or twice ln C. Info when only the run without warm-up fails",
    advice="read the checks before it: gradient-profile for stuck, facts and attention for collapses, first-step "
    "for diverges",
    cost="training",
    run=run,
    limits={"parameters": 3e6, "width": 48, "depth": 24, "batch": 32},
)
