"""Split channels into heads and join them again, head-major as every published variant has it."""

from __future__ import annotations

from torch import Tensor


def split_heads(x: Tensor, heads: int) -> Tensor:
    """Split [b t (h e)] into [b h t e]."""
    b, t, d = x.shape
    return x.reshape(b, t, heads, d // heads).transpose(1, 2)


def join_heads(x: Tensor) -> Tensor:
    """Join [b h t e] into [b t (h e)]."""
    b, h, t, e = x.shape
    return x.transpose(1, 2).reshape(b, t, h * e)
