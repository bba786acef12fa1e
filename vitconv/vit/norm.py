"""The two norms of a ViT, over the last axis, with statistics in the input's own precision."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vitconv.errors import UsageError


class Norm(nn.Module):
    """Normalise the last axis, then scale, then shift.

    layernorm: y = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias, var biased (Ba et al., 2016).
    rmsnorm:   y = x / sqrt(mean(x^2) + eps) * weight + bias (Zhang and Sennrich, 2019).
    `eps` is added to the variance, or to the mean square.
    """

    def __init__(self, width: int, eps: float, kind: str = "layernorm", bias: bool = True) -> None:
        super().__init__()
        if kind not in ("layernorm", "rmsnorm"):
            raise UsageError(f"norm kind {kind!r}: expected layernorm or rmsnorm")
        self.kind, self.eps = kind, eps
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """Normalise x: [... width], float; same shape and dtype out."""
        if self.kind == "layernorm":
            return nn.functional.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)
        y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.weight
        return y if self.bias is None else y + self.bias

    def extra_repr(self) -> str:
        """Describe the norm in `print(model)`."""
        return f"{self.weight.numel()}, eps={self.eps}, {self.kind}"
