# ruff: noqa: N803 - constexprs are capitals, as in Triton itself
"""Compute LayerNorm in Triton: one kernel forward, one backward; rows stay in registers, every tensor is read once.

x, grad: rows of any stride, unit stride over the D columns; y and dx are contiguous [rows D]. BD is D
padded to a power of two, BR the rows per step. Arithmetic is float32, addresses are int64. Formulas:
`reference`.
"""

import triton
import triton.language as tl


@triton.jit
def forward_kernel(
    x_ptr, weight_ptr, bias_ptr, y_ptr, mean_ptr, rstd_ptr, x_row, rows, eps,
    HAS_WEIGHT: tl.constexpr, HAS_BIAS: tl.constexpr, D: tl.constexpr, BR: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """Write y [rows D], mean and rstd [rows] float32. Grid: blocks of BR rows."""
    row = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)
    col = tl.arange(0, BD)
    live, lanes = row < rows, col < D
    ok = live[:, None] & lanes[None, :]
    x = tl.load(x_ptr + row[:, None] * x_row + col[None, :], mask=ok, other=0.0).to(tl.float32)
    mean = tl.sum(x, axis=1) / D
    # Lanes beyond D hold 0 - mean, which must not reach the variance.
    xc = tl.where(ok, x - mean[:, None], 0.0)
    rstd = 1.0 / tl.sqrt(tl.sum(xc * xc, axis=1) / D + eps)
    y = xc * rstd[:, None]
    if HAS_WEIGHT:
        y *= tl.load(weight_ptr + col, mask=lanes, other=0.0).to(tl.float32)[None, :]
    if HAS_BIAS:
        y += tl.load(bias_ptr + col, mask=lanes, other=0.0).to(tl.float32)[None, :]
    tl.store(y_ptr + row[:, None] * D + col[None, :], y.to(y_ptr.dtype.element_ty), mask=ok)
    tl.store(mean_ptr + row, mean, mask=live)
    tl.store(rstd_ptr + row, rstd, mask=live)


@triton.jit
def backward_kernel(
    grad_ptr, x_ptr, weight_ptr, mean_ptr, rstd_ptr, dx_ptr, dw_part_ptr, db_part_ptr, grad_row, x_row, rows, chunk,
    HAS_WEIGHT: tl.constexpr, HAS_BIAS: tl.constexpr, D: tl.constexpr, BR: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """Write dx [rows D] and per program the sums of dy xh and dy, [programs D] float32. Grid: chunks of rows.

    Every program writes its whole row of the partial sums, also when it has no live row: nothing is left uninitialised.
    """
    program = tl.program_id(0).to(tl.int64)
    col = tl.arange(0, BD)
    lanes = col < D
    dw = tl.zeros((BD,), dtype=tl.float32)
    db = tl.zeros((BD,), dtype=tl.float32)
    if HAS_WEIGHT:
        weight = tl.load(weight_ptr + col, mask=lanes, other=0.0).to(tl.float32)
    for start in range(0, chunk, BR):
        inner = start + tl.arange(0, BR)
        row = program * chunk + inner
        live = (row < rows) & (inner < chunk)
        ok = live[:, None] & lanes[None, :]
        x = tl.load(x_ptr + row[:, None] * x_row + col[None, :], mask=ok, other=0.0).to(tl.float32)
        dy = tl.load(grad_ptr + row[:, None] * grad_row + col[None, :], mask=ok, other=0.0).to(tl.float32)
        mean = tl.load(mean_ptr + row, mask=live, other=0.0)
        rstd = tl.load(rstd_ptr + row, mask=live, other=0.0)
        xh = tl.where(ok, (x - mean[:, None]) * rstd[:, None], 0.0)
        g = dy
        if HAS_WEIGHT:
            g = dy * weight[None, :]
        along = tl.sum(g * xh, axis=1) / D
        dx = (g - (tl.sum(g, axis=1) / D)[:, None] - xh * along[:, None]) * rstd[:, None]
        tl.store(dx_ptr + row[:, None] * D + col[None, :], dx.to(dx_ptr.dtype.element_ty), mask=ok)
        if HAS_WEIGHT:
            dw += tl.sum(dy * xh, axis=0)
        if HAS_BIAS:
            db += tl.sum(dy, axis=0)
    if HAS_WEIGHT:
        tl.store(dw_part_ptr + program * D + col, dw, mask=lanes)
    if HAS_BIAS:
        tl.store(db_part_ptr + program * D + col, db, mask=lanes)
