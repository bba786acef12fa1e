"""Do dropout and drop-path act in training, and not in evaluation"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from vitconv.checks.base.check import Check, Finding, Limits, NotApplicable
from vitconv.checks.base.context import Context


def run(context: Context, limits: Limits) -> Iterator[Finding]:
    """Run twice in each mode and compare."""
    built = context.network
    sites = [s for s in built.survey.random if s.rate > 0]
    images = context.data.batch(2)[0]
    fresh = context.fresh()

    def differs(training: bool) -> bool:
        fresh.module.train(training)
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(0)
            first = fresh.run(fresh.module, images)
            second = fresh.run(fresh.module, images)
        return float((first - second).abs().max()) > limits["noise"] * float(first.abs().max())

    acts, leaks = differs(True), differs(False)
    rates = ", ".join(f"{s.name} {s.rate:g}" for s in sites[:4])
    if leaks:
        yield Finding("error", "two evaluations of the same images differ: something random acts in eval mode")
    if sites and not acts:
        yield Finding(
            "error", f"dropout is configured ({rates}) and two training passes are the same: it does not act",
            {"sites": len(sites)}, tuple(s.name for s in sites[:8]),
        )  # fmt: skip
    if not sites and not acts and not leaks:
        raise NotApplicable("nothing random is configured")
    if acts and not leaks:
        yield Finding(
            "ok", f"acts in training and not in evaluation: {len(sites)} sites, {rates}", {"sites": len(sites)}
        )


CHECK = Check(
    id="dropout-alive",
    title="Do dropout and drop-path act in training, and not in evaluation?",
    measures="the largest difference of two passes over the same images in train mode, and in eval mode",
    threshold="error when rates above 0 are configured and nothing differs in train mode, or when eval mode differs "
    "by more "
    "than 1e-6 of the output",
    advice="see that the module that draws is called (xformers before 0.0.7 drops attention dropout with its sparse "
    "extension), and that module.eval() reaches it",
    cost="pass",
    run=run,
    limits={"noise": 1e-6},
)
