# ruff: noqa: N803 - constexprs are capitals, as in Triton itself
"""Compute bias + GELU + dropout in Triton: one kernel forward, one backward.

Tensors are [rows M], unit stride over M. A program handles the same BC columns of each quarter of the row,
Q = ceil(M / 4), so that one Philox call serves four elements and the mask is that of `philox.keep_mask`.
Arithmetic is float32, addresses are int64. THRESHOLD = round(p 2^32), 0 for no dropout. Formulas:
`reference`.
"""

import triton
import triton.language as tl

ROOT = tl.constexpr(0.7978845608028654)
CUBIC = tl.constexpr(0.044715)
HALF_ROOT = tl.constexpr(0.7071067811865476)
DENSITY = tl.constexpr(0.3989422804014327)


@triton.jit
def sigmoid(x):
    """Compute 1 / (1 + exp(-x)); exp may overflow, and the result is then 0 as it should be."""
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def activate(z, TANH: tl.constexpr):
    """Apply GELU."""
    if TANH:
        y = z * sigmoid((z + z * z * z * CUBIC) * (2.0 * ROOT))
    else:
        y = 0.5 * z * (1.0 + tl.erf(z * HALF_ROOT))
    return y


@triton.jit
def slope(z, TANH: tl.constexpr):
    """Compute the derivative of GELU."""
    if TANH:
        s = sigmoid((z + z * z * z * CUBIC) * (2.0 * ROOT))
        y = s + 2.0 * z * s * (1.0 - s) * ROOT * (1.0 + z * z * (3.0 * CUBIC))
    else:
        y = 0.5 * (1.0 + tl.erf(z * HALF_ROOT)) + z * tl.exp(-0.5 * z * z) * DENSITY
    return y


@triton.jit
def draw(seed, row, inner, Q: tl.constexpr):
    """Draw the four words of each (row, column within the quarter), [BR, BC] uint32."""
    counter = row[:, None] * Q + inner[None, :]
    low = (counter & 0xFFFFFFFF).to(tl.uint32)
    high = ((counter >> 32) & 0xFFFFFFFF).to(tl.uint32)
    zero = low * 0
    return tl.philox(seed, low, high, zero, zero)


@triton.jit
def load_z(x_ptr, bias_ptr, row, col, x_row, ok, lanes, HAS_BIAS: tl.constexpr):
    """Load x + bias in float32."""
    z = tl.load(x_ptr + row[:, None] * x_row + col[None, :], mask=ok, other=0.0).to(tl.float32)
    if HAS_BIAS:
        z += tl.load(bias_ptr + col, mask=lanes, other=0.0).to(tl.float32)[None, :]
    return z


@triton.jit
def forward_lane(
    x_ptr, bias_ptr, y_ptr, word, lane, row, inner, x_row, keep_scale, live,
    TANH: tl.constexpr, HAS_BIAS: tl.constexpr, THRESHOLD: tl.constexpr, M: tl.constexpr, Q: tl.constexpr,
):  # fmt: skip
    """Write y for one quarter of the columns."""
    col = lane * Q + inner
    lanes = (inner < Q) & (col < M)
    ok = live[:, None] & lanes[None, :]
    y = activate(load_z(x_ptr, bias_ptr, row, col, x_row, ok, lanes, HAS_BIAS), TANH)
    if THRESHOLD > 0:
        y = tl.where(word >= THRESHOLD, y * keep_scale, 0.0)
    tl.store(y_ptr + row[:, None] * M + col[None, :], y.to(y_ptr.dtype.element_ty), mask=ok)


# A seed is new in every call: one kernel serves all of them.
@triton.jit(do_not_specialize=["seed"])
def forward_kernel(
    x_ptr, bias_ptr, y_ptr, x_row, rows, seed, keep_scale,
    TANH: tl.constexpr, HAS_BIAS: tl.constexpr, THRESHOLD: tl.constexpr, M: tl.constexpr, Q: tl.constexpr,
    BR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Write y [rows M]. Grid: blocks of rows, blocks of columns of a quarter."""
    row = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)
    inner = tl.program_id(1) * BC + tl.arange(0, BC)
    live = row < rows
    if THRESHOLD > 0:
        w0, w1, w2, w3 = draw(seed, row, inner, Q)
    else:
        w0, w1, w2, w3 = 0, 0, 0, 0
    forward_lane(x_ptr, bias_ptr, y_ptr, w0, 0, row, inner, x_row, keep_scale, live, TANH, HAS_BIAS, THRESHOLD, M, Q)
    forward_lane(x_ptr, bias_ptr, y_ptr, w1, 1, row, inner, x_row, keep_scale, live, TANH, HAS_BIAS, THRESHOLD, M, Q)
    forward_lane(x_ptr, bias_ptr, y_ptr, w2, 2, row, inner, x_row, keep_scale, live, TANH, HAS_BIAS, THRESHOLD, M, Q)
    forward_lane(x_ptr, bias_ptr, y_ptr, w3, 3, row, inner, x_row, keep_scale, live, TANH, HAS_BIAS, THRESHOLD, M, Q)


@triton.jit
def backward_lane(
    grad_ptr, x_ptr, bias_ptr, dx_ptr, word, lane, row, inner, grad_row, x_row, keep_scale, live,
    TANH: tl.constexpr, HAS_BIAS: tl.constexpr, THRESHOLD: tl.constexpr, M: tl.constexpr, Q: tl.constexpr,
):  # fmt: skip
    """Write dx for one quarter of the columns and return its column sums in float32."""
    col = lane * Q + inner
    lanes = (inner < Q) & (col < M)
    ok = live[:, None] & lanes[None, :]
    z = load_z(x_ptr, bias_ptr, row, col, x_row, ok, lanes, HAS_BIAS)
    dz = tl.load(grad_ptr + row[:, None] * grad_row + col[None, :], mask=ok, other=0.0).to(tl.float32)
    if THRESHOLD > 0:
        dz = tl.where(word >= THRESHOLD, dz * keep_scale, 0.0)
    dz = dz * slope(z, TANH)
    tl.store(dx_ptr + row[:, None] * M + col[None, :], dz.to(dx_ptr.dtype.element_ty), mask=ok)
    return tl.sum(tl.where(ok, dz, 0.0), axis=0)


# A seed is new in every call: one kernel serves all of them.
@triton.jit(do_not_specialize=["seed"])
def backward_kernel(
    grad_ptr, x_ptr, bias_ptr, dx_ptr, db_part_ptr, grad_row, x_row, rows, chunk, seed, keep_scale,
    TANH: tl.constexpr, HAS_BIAS: tl.constexpr, THRESHOLD: tl.constexpr, M: tl.constexpr, Q: tl.constexpr,
    BR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Write dx [rows M] and per program the column sums, [programs 4 Q] float32. Grid: chunks of rows, columns."""
    program = tl.program_id(0).to(tl.int64)
    inner = tl.program_id(1) * BC + tl.arange(0, BC)
    s0 = tl.zeros((BC,), dtype=tl.float32)
    s1 = tl.zeros((BC,), dtype=tl.float32)
    s2 = tl.zeros((BC,), dtype=tl.float32)
    s3 = tl.zeros((BC,), dtype=tl.float32)
    for start in range(0, chunk, BR):
        step = start + tl.arange(0, BR)
        row = program * chunk + step
        live = (row < rows) & (step < chunk)
        if THRESHOLD > 0:
            w0, w1, w2, w3 = draw(seed, row, inner, Q)
        else:
            w0, w1, w2, w3 = 0, 0, 0, 0
        s0 += backward_lane(grad_ptr, x_ptr, bias_ptr, dx_ptr, w0, 0, row, inner, grad_row, x_row, keep_scale, live,
                            TANH, HAS_BIAS, THRESHOLD, M, Q)  # fmt: skip
        s1 += backward_lane(grad_ptr, x_ptr, bias_ptr, dx_ptr, w1, 1, row, inner, grad_row, x_row, keep_scale, live,
                            TANH, HAS_BIAS, THRESHOLD, M, Q)  # fmt: skip
        s2 += backward_lane(grad_ptr, x_ptr, bias_ptr, dx_ptr, w2, 2, row, inner, grad_row, x_row, keep_scale, live,
                            TANH, HAS_BIAS, THRESHOLD, M, Q)  # fmt: skip
        s3 += backward_lane(grad_ptr, x_ptr, bias_ptr, dx_ptr, w3, 3, row, inner, grad_row, x_row, keep_scale, live,
                            TANH, HAS_BIAS, THRESHOLD, M, Q)  # fmt: skip
    base = db_part_ptr + program * 4 * Q + inner
    tl.store(base, s0, mask=inner < Q)
    tl.store(base + Q, s1, mask=inner < Q)
    tl.store(base + 2 * Q, s2, mask=inner < Q)
    tl.store(base + 3 * Q, s3, mask=inner < Q)
