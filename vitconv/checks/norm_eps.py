"""Is the eps of every norm small against the variance it sees, and a number in half precision"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from vitconv.checks.base.check import Check, Finding, Limits, NotApplicable
from vitconv.checks.base.context import Context
from vitconv.checks.base.gated import SMALL_GAIN
from vitconv.checks.base.passes import Normed


def run(context: Context, limits: Limits) -> Iterator[Finding]:
    """Compare every norm's eps with the variance of what it is given."""
    # Where a variance is no number, something ahead of the norm is to blame: see loss-at-init and signals.
    norms = context.signals.norms
    seen = {name: norm for name, norm in norms.items() if math.isfinite(norm.variance)}
    if norms and not seen:
        raise NotApplicable("no norm is given finite values")
    if not seen:
        raise NotApplicable("no norm with an eps was run")
    # A branch whose norm starts at a gain of nothing gives nothing yet, whatever its eps.
    at_work = {name: norm for name, norm in seen.items() if context.trained or norm.gain >= SMALL_GAIN} or seen
    name, norm = max(at_work.items(), key=lambda item: _loss(item[1]))
    loss = _loss(norm)
    off = len(seen) - len(at_work)
    yield Finding(
        "warn" if loss > limits["loss"] else "ok",
        f"eps {norm.eps:g} takes {loss:.2%} of the output of {name}, whose tokens have a median std of "
        f"{math.sqrt(norm.variance):.3g} (limit {limits['loss']:.0%})"
        + (f"; {off} norms start at a gain below {SMALL_GAIN:g}, by design, and give nothing yet" if off else ""),
        {"eps": norm.eps, "variance": norm.variance, "loss": loss},
        (name,) if loss > limits["loss"] else (),
    )
    half = context.plan.precision == "fp16" or (
        context.weights is not None and any(t.dtype == torch.float16 for t in context.weights.values())
    )
    values = {norm.eps for norm in seen.values()}
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


def _loss(norm: Normed) -> float:
    total = norm.variance + norm.eps
    return 1.0 - math.sqrt(norm.variance / total) if total > 0 else 1.0


CHECK = Check(
    id="norm-eps",
    title="Is the eps of every norm small against the variance it sees?",
    measures="1 - sigma/sqrt(sigma² + eps) with the median sigma of the tokens, at every norm but those that start at "
    "a gain below 0.01 (Swin-v2's); eps rounded to float16",
    threshold="warn when half of the tokens lose more than 1 % of the output: sigma below 7 sqrt(eps), .022 at 1e-5 "
    "and .0071 at 1e-6. A class token or registers alone do not count: at std .02 and eps 1e-5, as DINOv3 and CLIP "
    "have them, they lose 1.2 % in networks that trained. Error "
    "when eps is 0 in float16 (below 3e-8) and parameters are float16",
    advice="take the eps of the codebase the weights come from, or scale up what enters the norm",
    cost="pass",
    run=run,
    limits={"loss": 0.01},
    source="exact; xformers 498e0093 keeps eps at 1.6e-5 and more for float16",
)
