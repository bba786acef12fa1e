"""Are the weights what an init scheme draws: none missed, zero, copied, uninitialised or out of bounds"""

from __future__ import annotations

from collections.abc import Iterator

from vitconv.checks.base.check import Check, Finding, Level, Limits
from vitconv.checks.base.context import Context

_LEVELS: dict[str, Level] = {"fail": "error", "warn": "warn", "info": "info"}


def run(context: Context, limits: Limits) -> Iterator[Finding]:
    """Audit the weights and pass on what is wrong."""
    found = context.audit
    best = found.fits[0]
    misfits = len(best.misfits)
    share = misfits / max(1, len(found.measured))
    for one in found.findings:
        # Training correlates what works together, queries and keys of a block most of all.
        grown = one.id == "correlated" and one.level == "warn" and found.training.state == "trained"
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


CHECK = Check(
    id="init-audit",
    title="Are the weights what an init scheme draws?",
    measures="moments and bounds of every tensor against every scheme, exact constants, singular values against "
    "Marchenko-Pastur's edge, copies across layers, stray -2.0, NaN, subnormals",
    threshold="error on what no init draws (NaN, memory nobody wrote, exact -2.0, a dead matrix, layers that are "
    "copies); warn when more than a fifth of the tensors deviates from the nearest scheme: two independent gates each, "
    "4.36 sigma and 5 % of a std, so that size alone does not flag",
    advice="draw again: vitconv init, or vitconv.inits.apply on the live network",
    cost="facts",
    run=run,
    limits={"misfits": 0.2},
    source="timm 1.0.31 trunc_normal_; Marchenko and Pastur, 1967",
)
