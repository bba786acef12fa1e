"""Compute LayerNorm in plain PyTorch with the rounding points of the Triton kernels.

    y  = w (x - mean) rstd + b,   rstd = (mean((x - mean)^2) + eps)^-1/2          (Ba et al. 2016, arXiv 1607.06450)
    dx = rstd (g - mean(g) - xh mean(g xh)),   g = w dy,   xh = (x - mean) rstd
    dw = sum dy xh,   db = sum dy

Statistics, products and sums are float32 (float64 for float64 input) whatever the dtypes of x, w, b and y;
each result is rounded once. The variance is centred: E[x^2] - E[x]^2 loses 6e-2 at mean / std = 1000 in
float32. eps is a float32 number added to a float32 variance, so 1e-6 stays 1e-6 when x is float16.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Statistics(NamedTuple):
    """Hold mean and reciprocal standard deviation per row, [rows], float32 (float64 for float64 input)."""

    mean: Tensor
    rstd: Tensor


def core_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype of statistics and sums: float64 for float64, else float32."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def forward(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, out_dtype: torch.dtype
) -> tuple[Tensor, Statistics]:
    """Normalise the rows of x: [rows d]; weight, bias: [d] or None. Returns y [rows d] in out_dtype, and statistics."""
    core = core_dtype(x)
    x = x.to(core)
    mean = x.mean(dim=-1)
    xc = x - mean.unsqueeze(-1)
    rstd = (xc.square().mean(dim=-1) + eps).rsqrt()
    y = xc * rstd.unsqueeze(-1)
    y = y if weight is None else y * weight.to(core)
    y = y if bias is None else y + bias.to(core)
    return y.to(out_dtype), Statistics(mean, rstd)


def backward(grad: Tensor, x: Tensor, weight: Tensor | None, statistics: Statistics) -> tuple[Tensor, Tensor, Tensor]:
    """Compute dx in the dtype of x and dw, db in the core dtype from the cotangent grad: [rows d], any float dtype."""
    core = core_dtype(x)
    xh = (x.to(core) - statistics.mean.unsqueeze(-1)) * statistics.rstd.unsqueeze(-1)
    dy = grad.to(core)
    g = dy if weight is None else dy * weight.to(core)
    along = (g * xh).mean(dim=-1, keepdim=True)
    dx = (g - g.mean(dim=-1, keepdim=True) - xh * along) * statistics.rstd.unsqueeze(-1)
    return dx.to(x.dtype), (dy * xh).sum(dim=0), dy.sum(dim=0)
