"""Do the queries and keys of every block get a gradient: what sees a post-norm network that will not train"""

from __future__ import annotations

import math
from collections.abc import Iterator

from vitconv.checks.base.check import Check, Finding, Level, Limits
from vitconv.checks.base.context import Context
from vitconv.checks.base.gated import gated
from vitconv.checks.base.passes import token_cosine

POST = ("post", "deepnorm")


def run(context: Context, limits: Limits) -> Iterator[Finding]:
    """Compare the query and key gradients of all blocks, and how alike the tokens become."""
    seen, arch = context.signals, context.arch
    norms = []
    for block in arch.blocks:
        parts = [seen.grads.get(f"{block}.attn.{p}.weight") for p in ("q", "k")]
        norms.append(math.sqrt(sum(float(g.double().square().sum()) for g in parts if g is not None)))
    cosines = [(float(i), token_cosine(x)) for i, (_, x) in enumerate(seen.stream())]
    curves = {"query and key gradient, norm": tuple((float(i), g) for i, g in enumerate(norms))}
    cosine = cosines[-1][1] if cosines else math.nan
    if not all(math.isfinite(g) for g in norms):
        yield Finding("error", "query and key gradients are not finite in float32")
        return
    if max(norms) == 0.0:
        frozen = [n for n, p in context.network.module.named_parameters() if not p.requires_grad]
        if frozen:
            yield Finding(
                "warn",
                f"queries and keys get no gradient: {len(frozen)} parameters are frozen (requires_grad is False)",
                {"frozen": len(frozen)},
                tuple(frozen[:8]),
                "fine for a linear probe; else set requires_grad before the optimiser is made",
            )
            return
        by_design = not context.trained and gated(context)
        yield Finding(
            "info" if by_design else "error",
            "queries and keys get no gradient at all: "
            + ("the branches are gated off at the start, as the scheme has it" if by_design else "and no gate is zero"),
            {"rho": 0.0},
        )
        return
    rho = min(norms) / max(norms)
    post = context.placement in POST
    level: Level = "ok"
    if post:
        level = "error" if rho < limits["post_error"] else "warn" if rho < limits["post_warn"] else "ok"
    elif rho < limits["pre_error"]:
        level = "error"
    held = f"{limits['post_error']:g} and {limits['post_warn']:g}" if post else f"{limits['pre_error']:g}"
    text = f"rho = {rho:.3g}: smallest over largest query and key gradient of {arch.depth} blocks (limits {held})"
    weakest = f"{arch.blocks[norms.index(min(norms))]}.attn"
    advice = "" if post else "look for a gate or a norm of the block that is named"
    yield Finding(
        level,
        f"{text}; token cosine after the last block {cosine:.4f}",
        {"rho": rho, "token_cosine": cosine},
        (weakest,) if level != "ok" else (),
        advice,
        curves,
        ("block", "norm"),
    )
    if post and cosine > limits["cosine"]:
        yield Finding(
            "warn",
            f"the tokens of an image are alike after the last block: cosine {cosine:.4f} (limit {limits['cosine']:g})",
            {"token_cosine": cosine},
            curves={"token cosine": tuple(cosines)},
            axes=("block", "cosine"),
        )


CHECK = Check(
    id="gradient-profile",
    title="Do the queries and keys of every block get a gradient?",
    measures="rho = min over blocks / max over blocks of the norm of the loss gradient of the query and key "
    "weights; mean "
    "cosine of two tokens of an image after the last block",
    threshold="norms after the sum: error below 1e-3, warn below 5e-2 (on digits, width 48: 6 blocks .30 trains, 12 "
    "blocks "
    ".014 only with warm-up, 24 blocks 2e-5 stays at chance, DeepNorm at 24 blocks .35 trains); norms before: error "
    "below 1e-4 (24 blocks .016 trains). Token cosine above .95 is a warning after the sum only: pre-norm networks "
    "reach .97 and train. It does not see a learning rate that is too high",
    advice="norm=deepnorm with scheme deepnorm, pre-norm, or std .02 at a small width; warm-up helps up to 12 blocks",
    cost="pass",
    run=run,
    limits={"post_error": 1e-3, "post_warn": 5e-2, "pre_error": 1e-4, "cosine": 0.95},
    source="Noci et al., Signal propagation in transformers, 2022; Dong et al., 2021; thresholds from trainings on "
    "digits",
)
