"""Is a network switched off at the start by design: a gain, a LayerScale, an output projection or a head of zeros"""

from __future__ import annotations

from vitconv.checks.base.context import Context
from vitconv.layout.blocks import block_of

_GATES = ("norm1.weight", "norm2.weight", "ls1", "ls2", "attn.out.weight", "attn.v.weight")


def gated(context: Context) -> bool:
    """Return whether a branch or the head starts at zero, so that what lies behind it gets no gradient yet."""
    weights = context.canonical
    head = "head.weight" in weights and not bool(weights["head.weight"].any())
    return head or branches_gated(context)


def branches_gated(context: Context) -> bool:
    """Return whether a branch starts at zero: with all of them, what is pooled is the same for every image."""
    weights = context.weights or {}
    return any(n.endswith(_GATES) and not bool(t.any()) for n, t in weights.items() if block_of(n))
