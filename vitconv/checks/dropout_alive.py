"""Do dropout and drop-path act in training, and not in evaluation"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from vitconv.checks.base.check import Check, Finding, Limits, NotApplicable
from vitconv.checks.base.context import Context
from vitconv.hosts.base.host import Built
from vitconv.hosts.base.survey import RandomSite

# Of one drop-path alone, every pass is like the first once in two million times.
PASSES = 22


def run(context: Context, limits: Limits) -> Iterator[Finding]:
    """Run again in evaluation; and where something random is configured, in training until two passes differ."""
    built = context.network
    sites = [s for s in built.survey.random if s.rate > 0]
    rates = ", ".join(f"{s.name} {s.rate:g}" for s in sites[:4])
    leaks = _differs(*_evaluated(context), limits["noise"]) or (bool(sites) and _in_evaluation(context, sites))
    if leaks:
        yield Finding("error", "something random acts in eval mode: two evaluations of the same image can differ")
    if not sites:
        if not leaks:
            raise NotApplicable("nothing random is configured")
        return
    yield from _too_high(sites, limits)
    acts = _acts(built, sites, context.data.batch(1)[0], limits["noise"])
    if acts is None:
        yield Finding("info", f"all that is dropped is 0 at the start ({rates}), so whether it acts cannot be seen")
    elif not acts:
        yield Finding(
            "error", f"dropout is configured ({rates}) and {PASSES} training passes are the same: it does not act",
            {"sites": len(sites)}, tuple(s.name for s in sites[:8]),
        )  # fmt: skip
    elif not leaks:
        yield Finding(
            "ok", f"acts in training and not in evaluation: {len(sites)} sites, {rates}", {"sites": len(sites)}
        )


def _too_high(sites: Sequence[RandomSite], limits: Limits) -> Iterator[Finding]:
    """Report rates above what any published training uses, and those that let nothing through."""
    for kind, what, most in (("drop-path", "branches", limits["path"]), ("dropout", "elements", limits["element"])):
        high = [s for s in sites if s.kind == kind and s.rate > most]
        if not high:
            continue
        top = max(high, key=lambda s: s.rate)
        if top.rate >= 1.0:
            effect = f"none of its {what} is ever seen in training, and nothing behind it learns"
        else:
            kept = 1.0 - top.rate
            effect = (
                f"{kept:.0%} of its {what} are kept, each {1 / kept:.3g} times as large, so what is added has "
                f"{top.rate / kept:.2g} times the variance of what was meant, and gets a gradient that rarely"
            )
        yield Finding(
            "error" if top.rate >= 1.0 else "warn",
            f"{kind} of {top.rate:g} in {top.name}, above {most:g} at {len(high)} sites: {effect}",
            {"rate": top.rate, "sites": len(high)},
            tuple(s.name for s in high[:8]),
            "of plain ViTs with public recipes ViT-H, the largest, takes drop-path 0.6, ViT-L 0.3 to 0.45, ViT-B 0.1 "
            "to 0.2; see whether a share to keep was given as a rate"
            if kind == "drop-path"
            else "ViTs take 0 or 0.1; see whether a share to keep was given as a rate",
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


def _in_evaluation(context: Context, sites: Sequence[RandomSite]) -> bool:
    """Say whether a module that draws changes what it is given in evaluation; two passes can be equal by chance."""
    module = context.network.module
    drawing, halved = torch.random.fork_rng(devices=[]), _as_likely_as_not(module, sites)
    with drawing, torch.no_grad(), halved, _dropped(module, sites) as dropped:
        context.network.run(module, context.data.batch(1)[0])
    return any(dropped)


def _acts(built: Built, sites: Sequence[RandomSite], images: Tensor, noise: float) -> bool | None:
    """Say whether something is dropped in training; None where all there is to drop is 0.

    Passes are run until two differ. A head or a gate of 0 hides that, so what every module that draws is given and
    gives is looked at too; and what draws without such a module shows in the output alone.
    """
    module = built.module
    before = {name: m.training for name, m in module.named_modules()}
    # Running means of a batch norm are put back too.
    state = {k: t.clone() for k, t in module.named_buffers()}
    module.train()
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad(), _as_likely_as_not(module, sites):
            torch.manual_seed(0)
            with _dropped(module, sites) as dropped:
                first = built.run(module, images)
                for _ in range(PASSES - 1):
                    if any(dropped) or _differs(first, built.run(module, images), noise):
                        return True
            return None if None in dropped else False
    finally:
        for name, m in module.named_modules():
            m.training = before[name]
        for k, t in module.named_buffers():
            t.copy_(state[k])


@contextmanager
def _dropped(module: nn.Module, sites: Sequence[RandomSite]) -> Iterator[set[bool | None]]:
    """Keep whether a module that draws changed what it was given, None where that was 0."""
    seen: set[bool | None] = set()

    def keep(_module: nn.Module, args: tuple[Any, ...], out: object) -> None:
        given = args[0] if args else None
        if isinstance(given, Tensor) and isinstance(out, Tensor) and given.shape == out.shape:
            seen.add(not torch.equal(given, out) if bool(given.any()) else None)

    names = {s.name for s in sites}
    handles = [m.register_forward_hook(keep) for name, m in module.named_modules() if name in names]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _as_likely_as_not(module: nn.Module, sites: Sequence[RandomSite]) -> Iterator[None]:
    """Give every drop-path a rate of a half: at 0.01, or at 0.99, two passes are mostly the same by chance."""
    modules = dict(module.named_modules())
    kept = []
    for site in sites:
        m = modules.get(site.name)
        attribute = next((a for a in ("drop_prob", "p") if isinstance(getattr(m, a, None), float)), None)
        if site.kind == "drop-path" and m is not None and attribute is not None:
            kept.append((m, attribute, getattr(m, attribute)))
    try:
        for m, attribute, _ in kept:
            setattr(m, attribute, 0.5)
        yield
    finally:
        for m, attribute, rate in kept:
            setattr(m, attribute, rate)


def _differs(first: Tensor, second: Tensor, noise: float) -> bool:
    return float((first - second).abs().max()) > noise * float(first.abs().max())


CHECK = Check(
    id="dropout-alive",
    title="Do dropout and drop-path act in training, and not in evaluation?",
    measures="the rates; the largest difference of two passes over the same images in eval mode, and of passes in "
    "train mode with every drop-path at a half",
    threshold="error when rates above 0 are configured and nothing differs in train mode, or when eval mode differs "
    "by more than 1e-4 of the output (batches of other sizes are summed in another order), or a rate is 1; warn above "
    "drop-path 0.6, the largest of DeiT III, in ViT-H (0.2 in ViT-B), and above dropout 0.5, the largest of the paper "
    "that brought it: what is kept is made 1/(1-p) times as large, which adds p/(1-p) times its own variance, as much "
    "as there is at 0.5, and 9 times that at 0.9",
    advice="see that the module that draws is called (xformers before 0.0.7 drops attention dropout with its sparse "
    "extension), and that module.eval() reaches it",
    cost="pass",
    run=run,
    limits={"noise": 1e-4, "path": 0.6, "element": 0.5},
    source="facebookresearch/deit 4bd679b, README_revenge.md; Huang et al., Deep networks with stochastic depth, 2016; "
    "Srivastava et al., Dropout, 2014",
)
