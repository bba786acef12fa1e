"""Launch the LayerNorm kernels: tiles, partial sums."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
from torch import Tensor

from vitconv.kernels.layer_norm import triton_kernels
from vitconv.kernels.layer_norm.reference import Statistics

# Elements that one program holds at once; with 16-byte accesses this keeps four to eight warps busy without spills.
TILE = 4096


class Tile(NamedTuple):
    """Hold rows per step, padded width, and warps."""

    rows: int
    width: int
    warps: int


def tile(width: int, *, backward: bool) -> Tile:
    """Choose a tile for a width: several rows for narrow ones, one row and more warps for wide ones."""
    padded = triton.next_power_of_2(width)
    budget = TILE // 2 if backward else TILE
    rows = max(1, min(32, budget // padded))
    return Tile(rows, padded, min(16, max(4, rows * padded // (512 if backward else 1024))))


def programs(rows: int, step: int, device: torch.device) -> tuple[int, int]:
    """Choose how many programs share the rows of the backward, and the chunk of each, a multiple of `step`."""
    units = torch.cuda.get_device_properties(device).multi_processor_count * 4 if device.type == "cuda" else 4
    steps = triton.cdiv(rows, step)
    chunk = step * triton.cdiv(steps, min(steps, units))
    return triton.cdiv(rows, chunk), chunk


def forward(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, out_dtype: torch.dtype
) -> tuple[Tensor, Statistics]:
    """Run the forward kernel on x: [rows d], unit stride over d."""
    rows, d = x.shape
    shape = tile(d, backward=False)
    y = torch.empty((rows, d), dtype=out_dtype, device=x.device)
    mean, rstd = (torch.empty(rows, dtype=torch.float32, device=x.device) for _ in range(2))
    triton_kernels.forward_kernel[(triton.cdiv(rows, shape.rows),)](
        x, x if weight is None else weight, x if bias is None else bias, y, mean, rstd, x.stride(0), rows, eps,
        HAS_WEIGHT=weight is not None, HAS_BIAS=bias is not None, D=d, BR=shape.rows, BD=shape.width,
        num_warps=shape.warps,
    )  # fmt: skip
    return y, Statistics(mean, rstd)


def backward(
    grad: Tensor, x: Tensor, weight: Tensor | None, statistics: Statistics, *, has_bias: bool
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Run the backward kernel on grad, x: [rows d]; dw, db are float32, or None without weight or bias."""
    rows, d = x.shape
    shape = tile(d, backward=True)
    count, chunk = programs(rows, shape.rows, x.device)
    dx = torch.empty((rows, d), dtype=x.dtype, device=x.device)
    dw, db = (torch.empty((count if there else 0, d), dtype=torch.float32, device=x.device)
              for there in (weight is not None, has_bias))  # fmt: skip
    triton_kernels.backward_kernel[(count,)](
        grad, x, x if weight is None else weight, *statistics, dx, dw, db, grad.stride(0), x.stride(0), rows, chunk,
        HAS_WEIGHT=weight is not None, HAS_BIAS=has_bias, D=d, BR=shape.rows, BD=shape.width, num_warps=shape.warps,
    )  # fmt: skip
    return dx, dw.sum(dim=0) if weight is not None else None, db.sum(dim=0) if has_bias else None
