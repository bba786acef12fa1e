"""Do dropout and drop-path act in training, and not in evaluation"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from vitconv.checks.base.check import Check, Finding, Limits, NotApplicable
from vitconv.checks.base.context import Context
from vitconv.hosts.base.host import Built


def run(context: Context, limits: Limits) -> Iterator[Finding]:
    """Run again in evaluation; and where something random is configured, twice in training."""
    built = context.network
    sites = [s for s in built.survey.random if s.rate > 0]
    rates = ", ".join(f"{s.name} {s.rate:g}" for s in sites[:4])
    leaks = _differs(*_evaluated(context), limits["noise"])
    if leaks:
        yield Finding("error", "two evaluations of the same image differ: something random acts in eval mode")
    if not sites:
        if not leaks:
            raise NotApplicable("nothing random is configured")
        return
    acts = _differs(*_trained(built, context.data.batch(1)[0]), limits["noise"])
    if not acts:
        yield Finding(
            "error", f"dropout is configured ({rates}) and two training passes are the same: it does not act",
            {"sites": len(sites)}, tuple(s.name for s in sites[:8]),
        )  # fmt: skip
    elif not leaks:
        yield Finding(
            "ok", f"acts in training and not in evaluation: {len(sites)} sites, {rates}", {"sites": len(sites)}
        )


def _evaluated(context: Context) -> tuple[Tensor, Tensor]:
    """Return the first example's output twice: of the pass that all checks share, and of another."""
    again, first = context.beside_nothing, context.signals.output[:1]
    if again is None or again.shape[0] != 2 or not bool(again[0].isfinite().all()):
        built = context.network
        # The same batch: where examples mix, one alone gives something else, and nothing is random.
        with torch.no_grad():
            return first, built.run(built.module, context.data.batch(context.plan.batch)[0])[:1]
    return first, again[:1]


def _trained(built: Built, images: Tensor) -> tuple[Tensor, Tensor]:
    module = built.module
    before = {name: m.training for name, m in module.named_modules()}
    # Running means of a batch norm are put back too.
    state = {k: t.clone() for k, t in module.named_buffers()}
    module.train()
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(0)
            return built.run(module, images), built.run(module, images)
    finally:
        for name, m in module.named_modules():
            m.training = before[name]
        for k, t in module.named_buffers():
            t.copy_(state[k])


def _differs(first: Tensor, second: Tensor, noise: float) -> bool:
    return float((first - second).abs().max()) > noise * float(first.abs().max())


CHECK = Check(
    id="dropout-alive",
    title="Do dropout and drop-path act in training, and not in evaluation?",
    measures="the largest difference of two passes over the same images in train mode, and in eval mode",
    threshold="error when rates above 0 are configured and nothing differs in train mode, or when eval mode differs "
    "by more "
    "than 1e-4 of the output (batches of other sizes are summed in another order)",
    advice="see that the module that draws is called (xformers before 0.0.7 drops attention dropout with its sparse "
    "extension), and that module.eval() reaches it",
    cost="pass",
    run=run,
    limits={"noise": 1e-4},
)
