"""Is the eps of every norm small against the variance it sees, and a number in half precision"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from vitconv.checks.base.check import Check, Finding, Limits, NotApplicable
from vitconv.checks.base.context import Context


def run(context: Context, limits: Limits) -> Iterator[Finding]:
    """Compare every norm's eps with the variance of what it is given."""
    # Where a variance is no number, something ahead of the norm is to blame: see loss-at-init and signals.
    seen = {name: found for name, found in context.signals.variances.items() if math.isfinite(found[0])}
    if context.signals.variances and not seen:
        raise NotApplicable("no norm is given finite values")
    if not seen:
        raise NotApplicable("no norm with an eps was run")
    worst_name, (low, eps) = max(seen.items(), key=lambda item: _loss(*item[1]))
    loss = _loss(low, eps)
    yield Finding(
        "warn" if loss > limits["loss"] else "ok",
        f"eps {eps:g} takes {loss:.2%} of the output of {worst_name}, whose smallest token has std "
        f"{math.sqrt(low):.3g} "
        f"(limit {limits['loss']:.0%})",
        {"eps": eps, "variance": low, "loss": loss},
        (worst_name,) if loss > limits["loss"] else (),
    )
    half = context.plan.precision == "fp16" or (
        context.weights is not None and any(t.dtype == torch.float16 for t in context.weights.values())
    )
    values = {eps for _, eps in seen.values()}
    gone = sorted(e for e in values if float(torch.tensor(e, dtype=torch.float16)) == 0.0)
    unsafe = sorted(e for e in values if e < 1 / 65504)
    if gone:
        yield Finding(
            "error" if half else "info",
            f"eps {', '.join(f'{e:g}' for e in gone)} is 0 in float16: a constant row gives NaN in a norm computed "
            "wholly so",
            {"eps": gone},
            advice="keep norms in float32, as autocast does, or take eps 1.6e-5 and more for float16",
        )
    elif unsafe and half:
        yield Finding(
            "warn",
            f"1/eps of {', '.join(f'{e:g}' for e in unsafe)} is infinite in float16: a hand-written norm divides by it",
            {"eps": unsafe},
        )


def _loss(variance: float, eps: float) -> float:
    return 1.0 - math.sqrt(variance / (variance + eps)) if variance + eps > 0 else 1.0


CHECK = Check(
    id="norm-eps",
    title="Is the eps of every norm small against the variance it sees?",
    measures="1 - sigma/sqrt(sigma² + eps) of the token with the smallest variance, at every norm, but for few that "
    "hold nothing yet (class token, registers); eps rounded to float16",
    threshold="warn when more than 1 % of the output is lost: sigma below 7 sqrt(eps), .022 at 1e-5 and .0071 at "
    "1e-6; error "
    "when eps is 0 in float16 (below 3e-8) and parameters are float16",
    advice="take the eps of the codebase the weights come from, or scale up what enters the norm",
    cost="pass",
    run=run,
    limits={"loss": 0.01},
    source="exact; xformers 498e0093 keeps eps at 1.6e-5 and more for float16",
)
