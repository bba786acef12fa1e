"""Are the weights what an init scheme draws: none missed, zero, copied, uninitialised or out of bounds"""

from __future__ import annotations

from collections.abc import Iterator

from vitconv.checks.base.check import Check, Finding, Level, Limits
from vitconv.checks.base.context import Context
from vitconv.inits.audit.faults import bare, nameless
from vitconv.parity.bridge import state_of

_LEVELS: dict[str, Level] = {"fail": "error", "warn": "warn", "info": "info"}


def run(context: Context, limits: Limits) -> Iterator[Finding]:
    """Audit the weights and pass on what is wrong."""
    yield from _shared(context)
    if context.weights is None and context.built is not None:
        yield from _without_roles(context)
        return
    found = context.audit
    best = found.fits[0]
    misfits = len(best.misfits)
    share = misfits / max(1, len(found.measured))
    together = _one_tensor(context)
    for one in found.findings:
        if one.id == "copied" and together.issuperset(one.where):
            continue
        # Training correlates what works together, queries and keys of a block most of all.
        grown = one.id == "correlated" and one.level == "warn" and found.training.state == "trained"
        # A table of zeros that is trained is how transformers' DeiT and BEiT start.
        grown |= one.id == "positions-zero" and _all_train(context, one.where)
        yield Finding("info" if grown else _LEVELS[one.level], one.text, {"audit": one.id}, one.where[:8], one.advice)
    figures = {
        "scheme": found.scheme,
        "misfits": misfits,
        "tensors": len(found.measured),
        "state": found.training.state,
    }
    if found.training.state == "trained":
        yield Finding("ok", f"trained; nearest init scheme {found.scheme}", figures)
    elif share > limits["misfits"]:
        names = tuple(best.misfits)[:8]
        yield Finding(
            "warn",
            f"no scheme explains the weights: of {found.scheme}, the nearest, {misfits} of {len(found.measured)} "
            "tensors "
            f"deviate (limit {limits['misfits']:.0%})",
            figures,
            names,
        )
    else:
        yield Finding("ok", f"{found.training.state}; scheme {found.scheme}, {misfits} tensors deviate", figures)


def _all_train(context: Context, names: tuple[str, ...]) -> bool:
    """Return whether a live network trains all these tensors; False where that is not known."""
    if context.bridge is None or context.built is None:
        return False
    own = dict(context.built.module.named_parameters())
    keys = [context.bridge.prefix + context.bridge.network.cells[name].view.tensor for name in names]
    return all(key in own and own[key].requires_grad for key in keys)


def _without_roles(context: Context) -> Iterator[Finding]:
    """Look at what can be told of any parameters: values nobody drew, and layers that are copies."""
    named = {name: p.detach() for name, p in context.network.module.named_parameters()}
    found = nameless(named)
    for one in found:
        yield Finding(_LEVELS[one.level], one.text, {"audit": one.id}, one.where[:8], one.advice)
    if not found:
        yield Finding(
            "info",
            f"{len(named)} parameters hold numbers, and no two layers the same; no layout explains their names, so "
            "what a scheme draws is not told of them",
            {"tensors": len(named)},
        )


def _shared(context: Context) -> Iterator[Finding]:
    """Tell parameters that are used in several places; a module that only has two names in a block is used once."""
    if context.built is None:
        return
    module = context.built.module
    if context.bridge is not None:
        several = list(context.bridge.shared(state_of(module)))
    else:
        places: dict[int, list[str]] = {}
        for name, p in module.named_parameters(remove_duplicate=False):
            places.setdefault(id(p), []).append(name)
        several = [tuple(names) for names in places.values() if len({bare(n) for n in names}) < len(names)]
    if several:
        text = "; ".join(" = ".join(names) for names in several[:4])
        yield Finding(
            "warn",
            f"{len(several)} parameters are used in several places: {text}",
            {"audit": "shared", "tensors": len(several)},
            tuple(several[0])[:8],
            "if layers of their own are meant, make each anew: a module that is made once and used in a loop is one",
        )


def _one_tensor(context: Context) -> frozenset[str]:
    """Return the canonical names of tensors that are the same memory."""
    if context.built is None or context.bridge is None:
        return frozenset()
    groups = context.bridge.shared(state_of(context.built.module))
    return frozenset(name for group in groups for name in group)


CHECK = Check(
    id="init-audit",
    title="Are the weights what an init scheme draws?",
    measures="moments and bounds of every tensor against every scheme, exact constants, singular values against "
    "Marchenko-Pastur's edge, copies across layers, stray -2.0, NaN, subnormals; of a network whose tensors no layout "
    "explains, what needs no role; and parameters that are used in several places",
    threshold="error on what no init draws (NaN, memory nobody wrote, exact -2.0, a dead matrix, layers that are "
    "copies); warn when more than a fifth of the tensors deviates from the nearest scheme: two independent gates each, "
    "4.36 sigma and 5 % of a std, so that size alone does not flag",
    advice="draw again: vitconv init, or vitconv.inits.apply on the live network",
    cost="facts",
    run=run,
    limits={"misfits": 0.2},
    source="timm 1.0.31 trunc_normal_; Marchenko and Pastur, 1967",
)
