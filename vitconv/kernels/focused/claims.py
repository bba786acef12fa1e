"""Settle with numbers what was claimed about focused linear attention's norms, sums and eps (FLatten issue 15).

Everything runs in float64 on drawn inputs, so a difference is a difference of functions, not of rounding.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from vitconv.kernels.focused.heads import join_heads, split_heads
from vitconv.kernels.focused.stable import FLOOR
from vitconv.kernels.focused.variants import divided, original, upstream_fix

HEADS, HEAD_WIDTH = 4, 32


def draw(tokens: int, std: float = 1.0, spread: float = 0.5, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Draw q, k, v: [2 tokens 128], float64, of the given std; tokens' lengths vary log-normally by `spread`."""
    generator = torch.Generator().manual_seed(seed)
    shape = (2, tokens, HEADS * HEAD_WIDTH)
    q, k, v = (torch.randn(shape, generator=generator, dtype=torch.float64) * std for _ in range(3))
    q, k = (x * torch.exp(spread * torch.randn(*shape[:2], 1, generator=generator, dtype=x.dtype)) for x in (q, k))
    return q, k, v


def phi(x: Tensor, power: float, *, norm: bool = True, joint: bool = True) -> Tensor:
    """Map tokens [b t d] to features [b h t e], softplus(scale) being 1; `norm` keeps |y|, `joint` spans all heads."""
    y = F.relu(x) + FLOOR
    y = y.unsqueeze(1) if joint else split_heads(y, HEADS)
    w = (y / y.amax(dim=-1, keepdim=True)) ** power
    w = w / w.norm(dim=-1, keepdim=True)
    w = w * y.norm(dim=-1, keepdim=True) if norm else w
    return split_heads(w.squeeze(1), HEADS) if joint else w


def attend(fq: Tensor, fk: Tensor, v: Tensor, eps: float) -> Tensor:
    """Aggregate features by means: fq, fk: [b h t e], v: [b t d]; returns [b t d]."""
    s = fk.transpose(-2, -1) @ split_heads(v, HEADS) / fk.shape[-2]
    return join_heads(fq @ s / (fq @ fk.mean(dim=-2, keepdim=True).transpose(-2, -1) + eps))


def _change(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm())


def drop_norm(which: str, power: float = 3, eps: float = 1e-6, tokens: int = 196) -> float:
    """Give the relative L2 change of the output when |q| ("q") or |k| ("k") is left out."""
    q, k, v = draw(tokens)
    full = attend(phi(q, power), phi(k, power), v, eps)
    return _change(attend(phi(q, power, norm=which != "q"), phi(k, power, norm=which != "k"), v, eps), full)


def norms_per_head(power: float = 3, tokens: int = 196) -> float:
    """Give the change when both norms of phi are taken per head and not over all heads."""
    q, k, v = draw(tokens)
    full = attend(phi(q, power), phi(k, power), v, 1e-6)
    return _change(attend(phi(q, power, joint=False), phi(k, power, joint=False), v, 1e-6), full)


def sum_for_mean(power: float = 3, eps: float = 1e-6, tokens: int = 196, std: float = 1.0) -> float:
    """Give the change between eps beside a sum (before e205a01) and the same eps beside a mean (after it)."""
    q, k, v = draw(tokens, std)
    zero = torch.zeros(1, 1, q.shape[-1], dtype=q.dtype)
    old = original(q, k, v, zero, None, heads=HEADS, power=power, eps=eps)
    return _change(upstream_fix(q, k, v, zero, None, heads=HEADS, power=power, eps=eps), old)


def division(eps: float, tokens: int = 196, std: float = 1.0) -> float:
    """Give the change made by v / 64 and 64 z with `eps`, against the original with its eps of 1e-6."""
    q, k, v = draw(tokens, std)
    zero = torch.zeros(1, 1, q.shape[-1], dtype=q.dtype)
    old = original(q, k, v, zero, None, heads=HEADS, power=3)
    return _change(divided(q, k, v, zero, None, heads=HEADS, power=3, eps=eps), old)


def table() -> Iterator[str]:
    """Yield the claims as Markdown lines: power, and the relative L2 change of the output for each deviation."""
    yield "| p | no q norm, eps 0 | same, eps 1e-6 | same, eps 1e-3 | no k norm | norms per head | mean for sum eps |"
    yield "| --- |" + " --- |" * 6
    for power in (3, 6, 8):
        exact = "< 1e-14" if drop_norm("q", power, 0.0) < 1e-14 else "not exact"
        values = (
            drop_norm("q", power, 1e-6), drop_norm("q", power, 1e-3), drop_norm("k", power), norms_per_head(power),
            sum_for_mean(power),
        )  # fmt: skip
        yield f"| {power} | {exact} | " + " | ".join(f"{value:.1e}" for value in values) + " |"


def magnitudes() -> Iterator[str]:
    """Yield the largest intermediates of the original at p = 3, std 1, as Markdown lines."""
    yield "| tokens | ksum | den | kv | num |"
    yield "| --- |" + " --- |" * 4
    for tokens in (49, 196, 784, 3136):
        yield f"| {tokens} | " + " | ".join(f"{value:.0f}" for value in largest(tokens).values()) + " |"


def largest(tokens: int, std: float = 1.0, power: float = 3) -> dict[str, float]:
    """Give the largest magnitudes of the original's intermediates: ksum, den, kv, num (any may pass 65504)."""
    q, k, v = draw(tokens, std)
    fq, fk = phi(q, power), phi(k, power)
    total, kv = fk.sum(dim=-2, keepdim=True), fk.transpose(-2, -1) @ split_heads(v, HEADS)
    named = {"ksum": total, "den": fq @ total.transpose(-2, -1), "kv": kv, "num": fq @ kv}
    return {name: float(x.abs().max()) for name, x in named.items()}
