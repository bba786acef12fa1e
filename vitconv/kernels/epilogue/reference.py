"""Compute bias + GELU + dropout in plain PyTorch with the rounding points and the mask of the Triton kernel.

    z = x + b,   y = keep gelu(z) / (1 - p)
    erf:   gelu(z) = z Phi(z),            gelu'(z) = Phi(z) + z exp(-z^2 / 2) / sqrt(2 pi)
    tanh:  gelu(z) = z s, s = sigmoid(2 u), u = sqrt(2 / pi) (z + 0.044715 z^3),  gelu'(z) = s + 2 z s (1 - s) du/dz

(Hendrycks and Gimpel 2016, arXiv 1606.08415; 1 + tanh(u) = 2 sigmoid(2 u), which does not cancel at large negative z.)
Everything is float32 (float64 for float64 input) and each result is rounded once.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from vitconv.kernels.epilogue.philox import keep_mask

ACTIVATIONS = ("erf", "tanh")
CUBIC = 0.044715


def core_dtype(x: Tensor) -> torch.dtype:
    """Return float64 for float64, else float32."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _tanh_parts(z: Tensor) -> tuple[Tensor, Tensor]:
    root = math.sqrt(2 / math.pi)
    return torch.sigmoid(2 * root * (z + CUBIC * z * z * z)), root * (1 + 3 * CUBIC * z * z)


def gelu(z: Tensor, activation: str) -> Tensor:
    """Apply the erf or tanh form of GELU to z, any shape, float32 or float64."""
    if activation == "tanh":
        return z * _tanh_parts(z)[0]
    return 0.5 * z * (1 + torch.erf(z * math.sqrt(0.5)))


def gelu_slope(z: Tensor, activation: str) -> Tensor:
    """Compute the derivative of `gelu` at z."""
    if activation == "tanh":
        s, slope = _tanh_parts(z)
        return s + 2 * z * s * (1 - s) * slope
    return 0.5 * (1 + torch.erf(z * math.sqrt(0.5))) + z * torch.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)


def _input(x: Tensor, bias: Tensor | None) -> Tensor:
    return x.to(core_dtype(x)) if bias is None else x.to(core_dtype(x)) + bias.to(core_dtype(x))


def _dropped(y: Tensor, p: float, seed: int) -> Tensor:
    if p == 0:
        return y
    keep = keep_mask(y.shape[0], y.shape[1], p, seed, y.device)
    return torch.where(keep, y / (1 - p), 0.0) if p < 1 else torch.zeros_like(y)


def forward(x: Tensor, bias: Tensor | None, activation: str, p: float, seed: int) -> Tensor:
    """Compute y [rows m] in the dtype of x from x: [rows m] and bias: [m] or None, any float dtypes."""
    return _dropped(gelu(_input(x, bias), activation), p, seed).to(x.dtype)


def backward(
    grad: Tensor, x: Tensor, bias: Tensor | None, activation: str, p: float, seed: int
) -> tuple[Tensor, Tensor]:
    """Compute dx [rows m] in the dtype of x and db [m] in the core dtype; the mask is drawn again from the seed."""
    dz = _dropped(grad.to(core_dtype(x)), p, seed) * gelu_slope(_input(x, bias), activation)
    return dz.to(x.dtype), dz.sum(dim=0)
