"""Are the attention logits small and the attention spread"""

from __future__ import annotations

from collections.abc import Iterator

from vitconv.checks.base.check import Check, Finding, Level, Limits, NotApplicable, graded
from vitconv.checks.base.context import Context


def run(context: Context, limits: Limits) -> Iterator[Finding]:
    """Look at the largest logit and the lowest entropy of all blocks."""
    rows = context.signals.attention
    if not rows and context.plain and context.arch.staged:
        raise NotApplicable("attention in windows is not worked out; fp16-headroom looks at its products")
    if not rows:
        raise NotApplicable("queries and keys cannot be worked out: head count or positions are not known")
    top, low = max(rows, key=lambda a: a.largest), min(rows, key=lambda a: a.entropy)
    curves = {
        "largest |logit|": tuple((float(a.block), a.largest) for a in rows),
        "logit std": tuple((float(a.block), a.std) for a in rows),
    }
    alarm = limits["trained"] if context.trained else limits["init"]
    level = graded(top.largest, alarm, limits["half"])
    yield Finding(
        level,
        f"largest |logit| {top.largest:.4g} in block {top.block} (warn {alarm:g}, error {limits['half']:g})",
        {"largest": top.largest, "block": top.block},
        (f"blocks.{top.block}.attn",) if level != "ok" else (),
        curves=curves,
        axes=("block", "logit"),
    )
    sharp: Level = "ok"
    if not low.entropy >= limits["entropy_error"]:
        sharp = "warn" if context.trained else "error"
    elif low.entropy < limits["entropy_warn"]:
        sharp = "info" if context.trained else "warn"
    yield Finding(
        sharp,
        f"lowest entropy {low.entropy:.3f} of ln(keys) in block {low.block} (limits {limits['entropy_warn']:g}, "
        f"{limits['entropy_error']:g})",
        {"entropy": low.entropy, "block": low.block},
        (f"blocks.{low.block}.attn",) if sharp not in ("ok", "info") else (),
        curves={"entropy / ln(keys)": tuple((float(a.block), a.entropy) for a in rows)},
        axes=("block", "entropy"),
    )


CHECK = Check(
    id="attention",
    title="Are the attention logits small and the attention spread?",
    measures="by block: largest and std of s q·k over all heads and pairs of tokens, mean entropy of the attention "
    "over ln of "
    "the number of keys",
    threshold="at init: warn at 50 (Xavier gives 5 to 6), and at entropy .3, error at .1 (res-post-norm at gain 1, "
    "48 blocks: "
    "385 and .04); trained: warn at 1000; always error at 6500, a tenth of float16's range",
    advice="normalise queries and keys, use cosine attention with a clamped scale, or start the norms' gains at 0",
    cost="pass",
    run=run,
    limits={"init": 50.0, "trained": 1000.0, "half": 6500.0, "entropy_warn": 0.3, "entropy_error": 0.1},
    source="Dehghani et al., ViT-22B, 2023; Wortsman et al., 2023; Zhai et al., 2023",
)
