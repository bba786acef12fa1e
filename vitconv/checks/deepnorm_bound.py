"""Do alpha in the residual and the size of the weights belong together"""

from __future__ import annotations

import math
from collections.abc import Iterator

from vitconv.checks.base.check import Check, Finding, Limits, NotApplicable
from vitconv.checks.base.context import Context
from vitconv.inits.base.deepnet import beta
from vitconv.registry import INITS, load


def run(context: Context, limits: Limits) -> Iterator[Finding]:
    """Work out DeepNet's bound from measured stds, and compare queries and keys with values."""
    placement = context.placement
    if placement not in ("post", "deepnorm"):
        raise NotApplicable("no norm stands after the sum")
    if context.trained:
        raise NotApplicable("the weights are trained")
    bound, depth = context.audit.bound, context.arch.depth
    if bound is None:
        raise NotApplicable("the bound cannot be worked out")
    deep = placement == "deepnorm"
    claims = deep and context.scheme != "" and load(INITS, context.scheme).balanced
    fits = limits["low"] <= bound <= limits["high"]
    plain = f"; 4N = {4 * depth} is Xavier with neither" if not deep else ""
    yield Finding(
        "ok" if fits else "error" if claims else "warn" if deep or bound > limits["high"] else "ok",
        f"N[(v²+w²) of attention + (v²+w²) of the MLP]/alpha² = {bound:.3g} ({limits['low']:g} to "
        f"{limits['high']:g}; 1 for "
        f"alpha = {(2 * depth) ** 0.25:.4f} with beta = {beta(depth):.4f}){plain}",
        {"bound": bound, "alpha": context.arch.alpha, "beta": beta(depth)},
    )
    if deep:
        yield from _queries(context, limits)


def _queries(context: Context, limits: Limits) -> Iterator[Finding]:
    """Queries and keys keep gain 1: xformers 0.0.12 to 0.0.28 gives them beta as well."""
    gains = {}
    for part in ("q", "k", "v"):
        stds = []
        for i in range(context.arch.depth):
            one = context.audit.measured[f"blocks.{i}.attn.{part}.weight"]
            stds.append(one.std / math.sqrt(2.0 / sum(one.shape)))
        gains[part] = sum(stds) / len(stds)
    ratio = math.sqrt(gains["q"] * gains["k"]) / gains["v"] if gains["v"] > 0 else math.inf
    right = 1.0 / beta(context.arch.depth)
    off = abs(math.log(ratio / right)) > math.log(limits["ratio"]) if 0 < ratio < math.inf else True
    yield Finding(
        "warn" if off else "ok",
        f"queries and keys have Xavier gain {gains['q']:.3f} and {gains['k']:.3f}, values {gains['v']:.3f}: ratio "
        f"{ratio:.3g}, "
        f"1/beta = {right:.3g} is DeepNet's",
        {**gains, "ratio": ratio},
        advice="give beta to values, output and MLP only; xformers 0.0.12 to 0.0.28.post3 scales queries and keys too",
    )


CHECK = Check(
    id="deepnorm-bound",
    title="Do alpha in the residual and the size of the weights belong together?",
    measures="B = sum over blocks of [(v²+w²) of value and output + (v²+w²) of the two MLP weights] / alpha², v and "
    "w Xavier "
    "gains measured from the stds; and the gain of queries and keys over that of values",
    threshold="0.5 to 2: the right pair gives exactly 1, a missing beta 9.8 and a missing alpha 4.9 at 12 blocks; "
    "error when the init scheme claims DeepNorm, else warn (without beta, 6 blocks trained, 12 and 24 with warm-up "
    "only); warn when queries over values is off 1/beta by 1.5",
    advice="draw by scheme deepnorm, and put alpha = (2N)^(1/4) into the residual",
    cost="facts",
    run=run,
    limits={"low": 0.5, "high": 2.0, "ratio": 1.5},
    source="Wang et al., DeepNet, 2022, theorem 4.2 and figure 2",
)
