"""Is a network switched off at the start by design: a gain, a LayerScale, an output projection or a head of zeros"""

from __future__ import annotations

from vitconv.checks.base.context import Context
from vitconv.layout.blocks import block_of

# LayerScale of 0.1 is what CaiT has at 12 blocks, and trains like one of 1; BEiT's head starts at 2e-5.
SMALL_GAIN, SMALL_HEAD = 1e-2, 1e-3

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


def small_start(context: Context) -> str:
    """Return in words what makes all gradients behind it small by design, a gain of the branches or the head, or ""."""
    if context.weights is None:
        return _small_vectors(context)
    weights = context.weights
    ends = ("ls1", "ls2", *(("norm1.weight", "norm2.weight") if context.placement == "res-post" else ()))
    gains = [float(t.double().abs().mean()) for n, t in weights.items() if n.endswith(ends) and block_of(n)]
    if gains and 0.0 < min(gains) < SMALL_GAIN:
        return f"the branches start at a gain of {min(gains):.2g}"
    head = float(weights["head.weight"].double().square().mean().sqrt()) if "head.weight" in weights else 1.0
    return f"the head starts at {head:.2g}" if 0.0 < head < SMALL_HEAD else ""


def _small_vectors(context: Context) -> str:
    """Return the same of a network whose roles are not known: a gain is a vector of one small value."""
    if context.built is None:
        return ""
    vectors = [p.detach() for p in context.built.module.parameters() if p.numel() > 1 and p.numel() == max(p.shape)]
    gains = [float(p.flatten()[0]) for p in vectors if bool((p == p.flatten()[0]).all())]
    small = [abs(g) for g in gains if 0.0 < abs(g) < SMALL_GAIN]
    return f"gains start at {min(small):.2g}" if small else ""
