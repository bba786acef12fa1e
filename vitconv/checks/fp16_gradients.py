"""How much of the gradient is lost below half precision's smallest numbers"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from vitconv.checks.base.check import Check, Finding, Limits, NotApplicable, graded
from vitconv.checks.base.context import Context
from vitconv.checks.base.gated import small_start
from vitconv.checks.base.halves import LARGEST, SCALES
from vitconv.inits.audit.measure import even
from vitconv.layout.blocks import block_of, is_block

# Gradients of one value that are counted: a share of 1 % is known to a thousandth of the whole.
SAMPLE = 1 << 16
FLUSHED, SUBNORMAL = 2.0**-25, 2.0**-14


def run(context: Context, limits: Limits) -> Iterator[Finding]:
    """Count gradients of the blocks' values that become zero in float16, with and without loss scale."""
    if not context.plan.precision.endswith("fp16"):
        raise NotApplicable(f"the plan is {context.plan.precision}, whose exponents are float32's")
    seen = {n: g for n, g in context.signals.tap_grads.items() if is_block(n) or block_of(n)}
    top = max((float(torch.linalg.vector_norm(g, math.inf)) for g in seen.values()), default=0.0)
    grads = [even(g.flatten(), SAMPLE).abs() for g in seen.values()]
    grads = [g[g > 0] for g in grads]
    grads = [g for g in grads if g.numel()]
    if not grads:
        raise NotApplicable("no gradient of a block is known")
    rows = {
        scale: (_share(grads, FLUSHED / scale), _share(grads, SUBNORMAL / scale)) for scale in (1.0, *SCALES[::-1][1:])
    }
    bare, scaled = rows[1.0][0], rows[SCALES[0]][0]
    level = graded(scaled, limits["warn"], limits["error"])
    small = small_start(context) if level != "ok" else ""
    yield Finding(
        "info" if small else level,
        f"of the blocks' gradients {bare:.2%} vanish in float16 unscaled ({rows[1.0][1]:.0%} subnormal), "
        f"{scaled:.2%} at loss "
        f"scale {SCALES[0]:g} (limits {limits['warn']:.0%}, {limits['error']:.0%})"
        + (f": {small}, so that what lies behind is as much smaller, until it has grown" if small else ""),
        {"flushed_unscaled": bare, "subnormal_unscaled": rows[1.0][1], "flushed_scaled": scaled, "largest": top},
        curves={
            "vanish": tuple((math.log2(scale), row[0]) for scale, row in rows.items()),
            "subnormal": tuple((math.log2(scale), row[1]) for scale, row in rows.items()),
        },
        axes=("log2 of the loss scale", "share"),
    )
    if bare > limits["warn"]:
        yield Finding(
            "info", f"without a loss scale {bare:.2%} are lost: GradScaler is needed", {"flushed_unscaled": bare}
        )
    if top * SCALES[0] > LARGEST:
        yield Finding(
            "info",
            f"the largest, {top:.3g}, times {SCALES[0]:g} is above 65504: the first step is skipped and the scale "
            "halved, "
            "which is expected",
            {"largest": top},
        )


def _share(grads: list[Tensor], below: float) -> float:
    return sum(int((g < below).sum()) for g in grads) / sum(g.numel() for g in grads)


CHECK = Check(
    id="fp16-gradients",
    title="How much of the gradient is lost below half precision's smallest numbers?",
    measures="share of the non-zero gradients of the blocks' values below 2^-25, which round to zero, and below "
    "2^-14, which "
    "are subnormal, at loss scales 1, 1024 and 65536",
    threshold="scaled: warn at 1 %, error at 5 % of them lost, but for networks whose branches start at a gain below "
    "0.01 or whose head starts below 1e-3: there it is so by design, and passes. Unscaled, 88 to 91 % subnormal "
    "is usual",
    advice="keep GradScaler on; a mean over a larger batch makes every gradient smaller, so look again at the real "
    "batch",
    cost="pass",
    run=run,
    limits={"warn": 0.01, "error": 0.05},
    source="Micikevicius et al., Mixed precision training, 2018",
)
