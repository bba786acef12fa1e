"""Launch the epilogue kernels."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from vitconv.kernels.epilogue import triton_kernels
from vitconv.kernels.epilogue.philox import threshold

PROGRAMS = 1024


class Tile(NamedTuple):
    """Hold rows per step, columns per quarter and step, and warps."""

    rows: int
    columns: int
    warps: int


def tile(width: int) -> Tile:
    """Choose a tile: up to 256 columns of each quarter, and rows to make 1024 elements per quarter, 8 per thread."""
    columns = min(256, triton.next_power_of_2(-(-width // 4)))
    return Tile(max(1, min(32, 1024 // columns)), columns, 4)


def constants(width: int, activation: str, p: float, shape: Tile, *, has_bias: bool) -> dict[str, Any]:
    """Return the constexprs of both kernels."""
    return {
        "TANH": activation == "tanh", "HAS_BIAS": has_bias, "THRESHOLD": threshold(p), "M": width,
        "Q": -(-width // 4), "BR": shape.rows, "BC": shape.columns, "num_warps": shape.warps,
    }  # fmt: skip


def forward(x: Tensor, bias: Tensor | None, activation: str, p: float, seed: int) -> Tensor:
    """Run the forward kernel on x: [rows m], unit stride over m; p < 1."""
    rows, m = x.shape
    shape = tile(m)
    y = torch.empty((rows, m), dtype=x.dtype, device=x.device)
    grid = (triton.cdiv(rows, shape.rows), triton.cdiv(-(-m // 4), shape.columns))
    triton_kernels.forward_kernel[grid](
        x, x if bias is None else bias, y, x.stride(0), rows, seed, 1 / (1 - p),
        **constants(m, activation, p, shape, has_bias=bias is not None),
    )  # fmt: skip
    return y


def backward(
    grad: Tensor, x: Tensor, bias: Tensor | None, activation: str, p: float, seed: int
) -> tuple[Tensor, Tensor]:
    """Run the backward kernel on grad, x: [rows m]; returns dx in the dtype of x and db [m] float32."""
    rows, m = x.shape
    shape, quarter = tile(m), -(-m // 4)
    columns = triton.cdiv(quarter, shape.columns)
    steps = triton.cdiv(rows, shape.rows)
    chunk = shape.rows * triton.cdiv(steps, max(1, min(steps, PROGRAMS // columns)))
    count = triton.cdiv(rows, chunk)
    dx = torch.empty((rows, m), dtype=x.dtype, device=x.device)
    parts = torch.empty((count, 4 * quarter), dtype=torch.float32, device=x.device)
    triton_kernels.backward_kernel[(count, columns)](
        grad, x, x if bias is None else bias, dx, parts, grad.stride(0), x.stride(0), rows, chunk, seed, 1 / (1 - p),
        **constants(m, activation, p, shape, has_bias=bias is not None),
    )  # fmt: skip
    return dx, parts.sum(dim=0)[:m]
