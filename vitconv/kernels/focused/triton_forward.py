# ruff: noqa: N803 - constexprs are capitals, as in Triton itself
"""Compute the forward of focused linear attention in Triton: row statistics, key state, output.

The scheme is that of `stable`. All arithmetic is float32; only the operands of `tl.dot` are narrowed, to
DOT, each after division by its own maximum, so that they lie in [-1, 1] in 16 bit. Every load is widened at
once, addresses are int64. Tensors are [b t d] with unit stride over d; `soft` is softplus(scale), [d]
float32. E is the head width, BE its padding to a power of two (>= 16), BT the tokens per block.
"""

import triton
import triton.language as tl

FLOOR = tl.constexpr(1e-6)
TINY = tl.constexpr(1.1754943508222875e-38)


@triton.jit
def raise_power(y, P: tl.constexpr):
    """Raise y in [0, 1] to the power P: by squaring for an int up to 31, else by exp2 and log2."""
    if P == 1:
        w = y
    elif P == 2:
        w = y * y
    elif P == 3:
        w = y * y * y
    elif P % 1 == 0 and P < 32:
        w = y * 0.0 + 1.0
        square = y
        for bit in tl.static_range(5):
            if (P >> bit) & 1:
                w = w * square
            square = square * square
    else:
        w = tl.exp2(tl.log2(y) * P)
    return w


@triton.jit
def place(heads, blocks):
    """Return block, head and batch of a program: one grid axis for all, heads fastest; the others end at 65535."""
    program = tl.program_id(0)
    inner = program // heads
    return inner % blocks, program % heads, (inner // blocks).to(tl.int64)


@triton.jit
def load_features(x_ptr, pos_ptr, soft, rows, cols, row_stride, pos_stride, ok, HAS_POS: tl.constexpr):
    """Load x (+ position) as float32 [BT, BE] and compute relu(x) + 1e-6 over soft; zero where not ok."""
    x = tl.load(x_ptr + rows[:, None] * row_stride + cols[None, :], mask=ok, other=0.0).to(tl.float32)
    if HAS_POS:
        x += tl.load(pos_ptr + rows[:, None] * pos_stride + cols[None, :], mask=ok, other=0.0).to(tl.float32)
    y = tl.where(ok, (tl.maximum(x, 0.0) + FLOOR) / soft[None, :], 0.0)
    return x, y


@triton.jit
def statistics_kernel(
    x_ptr, pos_ptr, soft_ptr, mu_ptr, rh_ptr, th_ptr, batch_stride, row_stride, pos_stride, tokens, blocks,
    P: tl.constexpr, HAS_POS: tl.constexpr, D: tl.constexpr, BT: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """Write mu = max y, rh = |y / mu| and th = |(y / mu)^p| over all D channels of each token, [b t] float32."""
    block, _only, batch = place(1, blocks)
    rows = block.to(tl.int64) * BT + tl.arange(0, BT)
    cols = tl.arange(0, BD)
    live = rows < tokens
    ok = live[:, None] & (cols < D)[None, :]
    soft = tl.load(soft_ptr + cols, mask=cols < D, other=1.0)
    _, y = load_features(x_ptr + batch * batch_stride, pos_ptr, soft, rows, cols, row_stride, pos_stride, ok, HAS_POS)
    mu = tl.where(live, tl.max(y, axis=1), 1.0)
    yh = y / mu[:, None]
    wh = raise_power(yh, P)
    out = batch * tokens + rows
    tl.store(mu_ptr + out, mu, mask=live)
    tl.store(rh_ptr + out, tl.sqrt(tl.sum(yh * yh, axis=1)), mask=live)
    tl.store(th_ptr + out, tl.sqrt(tl.sum(wh * wh, axis=1)), mask=live)


@triton.jit
def load_keys(
    k_ptr, pos_ptr, soft, mu_ptr, rh_ptr, th_ptr, rows, cols, row_stride, pos_stride, live, ok,
    P: tl.constexpr, HAS_POS: tl.constexpr,
):  # fmt: skip
    """Compute x, y / mu and phi(k) of one block, [BT, BE], and the row statistics; phi is zero where not ok."""
    x, y = load_features(k_ptr, pos_ptr, soft, rows, cols, row_stride, pos_stride, ok, HAS_POS)
    mu = tl.load(mu_ptr + rows, mask=live, other=1.0)
    rh = tl.load(rh_ptr + rows, mask=live, other=1.0)
    th = tl.load(th_ptr + rows, mask=live, other=1.0)
    yh = y / mu[:, None]
    wh = raise_power(yh, P) / th[:, None]
    return x, yh / rh[:, None], wh, wh * (mu * rh)[:, None]


@triton.jit
def state_kernel(
    k_ptr, v_ptr, pos_ptr, soft_ptr, mu_ptr, rh_ptr, th_ptr, s_ptr, u_ptr,
    k_batch, k_row, v_batch, v_row, pos_stride, tokens, chunk, heads, blocks,
    P: tl.constexpr, HAS_POS: tl.constexpr, E: tl.constexpr, BT: tl.constexpr, BE: tl.constexpr,
    DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Write partial sums over a chunk of tokens: s [b h split E E] = sum phi(k)^T v and u [b h split E] = sum phi(k).

    Grid: batch x split x head. Operands are phi divided by each channel's maximum over the block.
    """
    split, head, batch = place(heads, blocks)
    c = tl.arange(0, BE)
    cols, lanes = head * E + c, c < E
    soft = tl.load(soft_ptr + cols, mask=lanes, other=1.0)
    stats = batch * tokens
    acc = tl.zeros((BE, BE), dtype=tl.float32)
    total = tl.zeros((BE,), dtype=tl.float32)
    for start in range(0, chunk, BT):
        inner = start + tl.arange(0, BT)
        rows = (split.to(tl.int64) * chunk) + inner
        live = (rows < tokens) & (inner < chunk)
        ok = live[:, None] & lanes[None, :]
        _, _, _, phi = load_keys(
            k_ptr + batch * k_batch, pos_ptr, soft, mu_ptr + stats, rh_ptr + stats, th_ptr + stats,
            rows, cols, k_row, pos_stride, live, ok, P, HAS_POS,
        )  # fmt: skip
        top = tl.maximum(tl.max(phi, axis=0), TINY)
        narrow = (phi / top[None, :]).to(DOT)
        v = tl.load(v_ptr + batch * v_batch + rows[:, None] * v_row + cols[None, :], mask=ok, other=0.0)
        v = v.to(tl.float32).to(DOT)
        acc += tl.dot(tl.trans(narrow), v, input_precision=PRECISION) * top[:, None]
        total += tl.sum(narrow.to(tl.float32), axis=0) * top
    base = (batch * heads + head) * blocks + split
    both = lanes[:, None] & lanes[None, :]
    tl.store(s_ptr + base * E * E + c[:, None] * E + c[None, :], acc, mask=both)
    tl.store(u_ptr + base * E + c, total, mask=lanes)


@triton.jit
def load_weights(
    q_ptr, soft, u, mu_ptr, rh_ptr, th_ptr, rows, cols, row_stride, eps, live, ok, P: tl.constexpr,
    DOT: tl.constexpr,
):  # fmt: skip
    """Compute W [BT, BE] (rounded to DOT, kept float32), E and D of a block of queries, with x and the statistics."""
    x, y = load_features(q_ptr, q_ptr, soft, rows, cols, row_stride, 0, ok, False)
    mu = tl.load(mu_ptr + rows, mask=live, other=1.0)
    rh = tl.load(rh_ptr + rows, mask=live, other=1.0)
    th = tl.load(th_ptr + rows, mask=live, other=1.0)
    m = tl.where(live, tl.max(y, axis=1), 1.0)
    alpha = mu * (rh / th) * raise_power(m / mu, P)
    rest = eps / tl.maximum(alpha, TINY)
    w = raise_power(y / m[:, None], P) * u[None, :]
    top = tl.maximum(tl.maximum(tl.max(w, axis=1), rest), TINY)
    w = (w / top[:, None]).to(DOT).to(tl.float32)
    rest = rest / top
    yh = y / mu[:, None]
    d = tl.maximum(tl.sum(w, axis=1) + rest, TINY)
    return x, yh / rh[:, None], raise_power(yh, P) / th[:, None], w, rest, d


@triton.jit
def output_kernel(
    q_ptr, soft_ptr, mu_ptr, rh_ptr, th_ptr, s_ptr, u_ptr, add_ptr, out_ptr,
    q_batch, q_row, add_batch, add_row, add_col, tokens, heads, blocks, eps,
    P: tl.constexpr, HAS_ADD: tl.constexpr, D: tl.constexpr, E: tl.constexpr, BT: tl.constexpr, BE: tl.constexpr,
    DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Write out [b t D] = W S / D (+ add). Grid: batch x block x head. s [b h E E], u [b h E] are means."""
    block, head, batch = place(heads, blocks)
    rows = block.to(tl.int64) * BT + tl.arange(0, BT)
    c = tl.arange(0, BE)
    cols, lanes, live = head * E + c, c < E, rows < tokens
    ok = live[:, None] & lanes[None, :]
    soft = tl.load(soft_ptr + cols, mask=lanes, other=1.0)
    state = batch * heads + head
    u = tl.load(u_ptr + state * E + c, mask=lanes, other=0.0)
    s = tl.load(s_ptr + state * E * E + c[:, None] * E + c[None, :], mask=lanes[:, None] & lanes[None, :], other=0.0)
    peak = tl.maximum(tl.max(tl.max(tl.abs(s), axis=1), axis=0), TINY)
    stats = batch * tokens
    _, _, _, w, _, d = load_weights(
        q_ptr + batch * q_batch, soft, u, mu_ptr + stats, rh_ptr + stats, th_ptr + stats,
        rows, cols, q_row, eps, live, ok, P, DOT,
    )  # fmt: skip
    out = tl.dot(w.to(DOT), (s / peak).to(DOT), input_precision=PRECISION) * (peak / d)[:, None]
    if HAS_ADD:
        where = add_ptr + batch * add_batch + rows[:, None] * add_row + cols[None, :] * add_col
        out += tl.load(where, mask=ok, other=0.0).to(tl.float32)
    where = out_ptr + batch * tokens * D + rows[:, None] * D + cols[None, :]
    tl.store(where, out.to(out_ptr.dtype.element_ty), mask=ok)
