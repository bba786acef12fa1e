# ruff: noqa: N803 - constexprs are capitals, as in Triton itself
"""Compute the backward of focused linear attention in Triton: reduce over queries, then dq, then dk and dv.

Symbols as in `stable`; conventions as in `triton_forward`. The features couple all heads of a token through
one number, A = sum over all channels of h: for q the first kernel leaves its parts per head, for k one
program visits all heads twice.
"""

import triton
import triton.language as tl

from vitconv.kernels.focused.triton_forward import TINY, load_keys, load_weights, place

FLOOR = tl.constexpr(1e-6)


@triton.jit
def load_scaled(s_ptr, c, lanes, E: tl.constexpr):
    """Load a state [E, E] divided by each row's maximum, padded with zeros, and those maxima."""
    s = tl.load(s_ptr + c[:, None] * E + c[None, :], mask=lanes[:, None] & lanes[None, :], other=0.0)
    peak = tl.maximum(tl.max(tl.abs(s), axis=1), TINY)
    return s / peak[:, None], peak


@triton.jit
def feature_gradient(h, total, yn, wn, P: tl.constexpr):
    """Turn h = phi dL/dphi into y dL/dy, [BT, BE]; yn = yh / rh, wn = yh^p / th, total = A [BT]."""
    a = total[:, None]
    return P * (h - a * wn * wn) + a * yn * yn


@triton.jit
def query_terms(
    q_ptr, grad_ptr, soft, u, mu_ptr, rh_ptr, th_ptr, narrow_s, peak, rows, cols, q_row, grad_row, eps, live, ok,
    P: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute x, yn, wn, V = W / D, g (as DOT), h = V (g . S - c), c and c E / D of a block of queries.

    g . S is held against its value at the channel that weighs most, whose difference from c would cancel.
    """
    x, yn, wn, w, rest, d = load_weights(
        q_ptr, soft, u, mu_ptr, rh_ptr, th_ptr, rows, cols, q_row, eps, live, ok, P, DOT
    )
    g = tl.load(grad_ptr + rows[:, None] * grad_row + cols[None, :], mask=ok, other=0.0).to(tl.float32).to(DOT)
    along = tl.dot(g, tl.trans(narrow_s), input_precision=PRECISION) * peak[None, :]
    weight = w / d[:, None]
    share = rest / d
    most = weight >= tl.max(weight, axis=1)[:, None]
    first = tl.max(tl.where(most, along, float("-inf")), axis=1)
    beside = along - first[:, None]
    beside_c = tl.sum(weight * beside, axis=1)
    c = beside_c + (1.0 - share) * first
    h = weight * (beside + (share * first - beside_c)[:, None])
    return x, yn, wn, weight, g, h, c, c * share


@triton.jit
def reduce_kernel(
    q_ptr, grad_ptr, soft_ptr, mu_ptr, rh_ptr, th_ptr, s_ptr, u_ptr, t_ptr, h_ptr, part_ptr,
    q_batch, q_row, grad_batch, grad_row, tokens, chunk, heads, blocks, eps,
    P: tl.constexpr, E: tl.constexpr, BT: tl.constexpr, BE: tl.constexpr, DOT: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Write partial t [b h split E E] = sum V^T g, h [b h split E] = sum V (g . S - c), and part [b t h] = c E / D.

    Grid: batch x split x head.
    """
    split, head, batch = place(heads, blocks)
    c = tl.arange(0, BE)
    cols, lanes = head * E + c, c < E
    soft = tl.load(soft_ptr + cols, mask=lanes, other=1.0)
    state = batch * heads + head
    u = tl.load(u_ptr + state * E + c, mask=lanes, other=0.0)
    s, peak = load_scaled(s_ptr + state * E * E, c, lanes, E)
    s = s.to(DOT)
    stats = batch * tokens
    acc = tl.zeros((BE, BE), dtype=tl.float32)
    total = tl.zeros((BE,), dtype=tl.float32)
    for start in range(0, chunk, BT):
        inner = start + tl.arange(0, BT)
        rows = (split.to(tl.int64) * chunk) + inner
        live = (rows < tokens) & (inner < chunk)
        ok = live[:, None] & lanes[None, :]
        _, _, _, weight, g, h, _, part = query_terms(
            q_ptr + batch * q_batch, grad_ptr + batch * grad_batch, soft, u,
            mu_ptr + stats, rh_ptr + stats, th_ptr + stats, s, peak,
            rows, cols, q_row, grad_row, eps, live, ok, P, DOT, PRECISION,
        )  # fmt: skip
        top = tl.maximum(tl.max(weight, axis=0), TINY)
        narrow = (weight / top[None, :]).to(DOT)
        acc += tl.dot(tl.trans(narrow), g, input_precision=PRECISION) * top[:, None]
        total += tl.sum(h, axis=0)
        tl.store(part_ptr + (stats + rows) * heads + head, part, mask=live)
    base = state * blocks + split
    both = lanes[:, None] & lanes[None, :]
    tl.store(t_ptr + base * E * E + c[:, None] * E + c[None, :], acc, mask=both)
    tl.store(h_ptr + base * E + c, total, mask=lanes)


@triton.jit
def query_kernel(
    q_ptr, grad_ptr, soft_ptr, mu_ptr, rh_ptr, th_ptr, s_ptr, u_ptr, part_ptr, dq_ptr, soft_part_ptr,
    q_batch, q_row, grad_batch, grad_row, tokens, blocks, eps,
    P: tl.constexpr, H: tl.constexpr, BH: tl.constexpr, D: tl.constexpr, E: tl.constexpr, BT: tl.constexpr,
    BE: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Write dq [b t D] and partial sums of y dy, soft_part [b block D]. Grid: batch x block x head."""
    block, head, batch = place(H, blocks)
    rows = block.to(tl.int64) * BT + tl.arange(0, BT)
    c, hs = tl.arange(0, BE), tl.arange(0, BH)
    cols, lanes, live = head * E + c, c < E, rows < tokens
    ok = live[:, None] & lanes[None, :]
    soft = tl.load(soft_ptr + cols, mask=lanes, other=1.0)
    state = batch * H + head
    u = tl.load(u_ptr + state * E + c, mask=lanes, other=0.0)
    s, peak = load_scaled(s_ptr + state * E * E, c, lanes, E)
    stats = batch * tokens
    x, yn, wn, _, _, h, _, _ = query_terms(
        q_ptr + batch * q_batch, grad_ptr + batch * grad_batch, soft, u,
        mu_ptr + stats, rh_ptr + stats, th_ptr + stats, s.to(DOT), peak,
        rows, cols, q_row, grad_row, eps, live, ok, P, DOT, PRECISION,
    )  # fmt: skip
    parts = tl.load(
        part_ptr + (stats + rows)[:, None] * H + hs[None, :], mask=live[:, None] & (hs < H)[None, :], other=0.0
    )
    ydy = tl.where(ok, feature_gradient(h, tl.sum(parts, axis=1), yn, wn, P), 0.0)
    dq = tl.where(x > 0, ydy / (tl.maximum(x, 0.0) + FLOOR), 0.0)
    where = dq_ptr + (stats + rows)[:, None] * D + cols[None, :]
    tl.store(where, dq.to(dq_ptr.dtype.element_ty), mask=ok)
    base = (batch * blocks + block) * D
    tl.store(soft_part_ptr + base + cols, tl.sum(ydy, axis=0), mask=lanes)


@triton.jit
def key_terms(
    k_ptr, v_ptr, pos_ptr, soft_ptr, mu_ptr, rh_ptr, th_ptr, t_ptr, tc_ptr, near_ptr, inv_ptr, state,
    head, rows, k_row, v_row, pos_stride, live,
    P: tl.constexpr, HAS_POS: tl.constexpr, E: tl.constexpr, BE: tl.constexpr, DOT: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute x, yn, wn, h = P ((v - near) T^T + t) of one head's keys, P, and T over its row maxima with those."""
    c = tl.arange(0, BE)
    cols, lanes = head * E + c, c < E
    ok = live[:, None] & lanes[None, :]
    soft = tl.load(soft_ptr + cols, mask=lanes, other=1.0)
    x, yn, wn, phi = load_keys(
        k_ptr, pos_ptr, soft, mu_ptr, rh_ptr, th_ptr, rows, cols, k_row, pos_stride, live, ok, P, HAS_POS
    )
    share = phi * tl.load(inv_ptr + state * E + c, mask=lanes, other=0.0)[None, :]
    t, peak = load_scaled(t_ptr + state * E * E, c, lanes, E)
    t = t.to(DOT)
    near = tl.load(near_ptr + state * E + c, mask=lanes, other=0.0)
    v = tl.load(v_ptr + rows[:, None] * v_row + cols[None, :], mask=ok, other=0.0).to(tl.float32)
    # Halved, so that a difference of two values stays in the range of float16.
    v = ((v - near[None, :]) * 0.5).to(DOT)
    tc = tl.load(tc_ptr + state * E + c, mask=lanes, other=0.0)
    h = share * (tl.dot(v, tl.trans(t), input_precision=PRECISION) * (2.0 * peak)[None, :] + tc[None, :])
    return x, yn, wn, h, share, t, peak, cols, ok


@triton.jit
def key_kernel(
    k_ptr, v_ptr, pos_ptr, soft_ptr, mu_ptr, rh_ptr, th_ptr, t_ptr, tc_ptr, near_ptr, inv_ptr, dk_ptr, dv_ptr,
    soft_part_ptr,
    k_batch, k_row, v_batch, v_row, pos_stride, tokens, blocks,
    P: tl.constexpr, HAS_POS: tl.constexpr, H: tl.constexpr, D: tl.constexpr, E: tl.constexpr, BT: tl.constexpr,
    BE: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Write dk, dv [b t D] and partial sums of y dy, soft_part [b block D]. Grid: batch x block.

    inv [b h E] = 1 / sum phi(k); near [b h E] is one row of S, and tc = sum_i h - (S - near) . T. The first visit to
    the heads writes dv and sums A, the second writes dk.
    """
    block, _only, batch = place(1, blocks)
    rows = block.to(tl.int64) * BT + tl.arange(0, BT)
    live = rows < tokens
    stats = batch * tokens
    k_ptr += batch * k_batch
    v_ptr += batch * v_batch
    total = tl.zeros((BT,), dtype=tl.float32)
    for head in range(H):
        _, _, _, h, share, t, peak, cols, ok = key_terms(
            k_ptr, v_ptr, pos_ptr, soft_ptr, mu_ptr + stats, rh_ptr + stats, th_ptr + stats, t_ptr, tc_ptr, near_ptr,
            inv_ptr, batch * H + head, head, rows, k_row, v_row, pos_stride, live, P, HAS_POS, E, BE, DOT, PRECISION,
        )  # fmt: skip
        total += tl.sum(h, axis=1)
        share = share * peak[None, :]
        top = tl.maximum(tl.max(share, axis=1), TINY)
        dv = tl.dot((share / top[:, None]).to(DOT), t, input_precision=PRECISION) * top[:, None]
        where = (stats + rows)[:, None] * D + cols[None, :]
        tl.store(dv_ptr + where, dv.to(dv_ptr.dtype.element_ty), mask=ok)
    for head in range(H):
        x, yn, wn, h, _, _, _, cols, ok = key_terms(
            k_ptr, v_ptr, pos_ptr, soft_ptr, mu_ptr + stats, rh_ptr + stats, th_ptr + stats, t_ptr, tc_ptr, near_ptr,
            inv_ptr, batch * H + head, head, rows, k_row, v_row, pos_stride, live, P, HAS_POS, E, BE, DOT, PRECISION,
        )  # fmt: skip
        ydy = tl.where(ok, feature_gradient(h, total, yn, wn, P), 0.0)
        dk = tl.where(x > 0, ydy / (tl.maximum(x, 0.0) + FLOOR), 0.0)
        where = (stats + rows)[:, None] * D + cols[None, :]
        tl.store(dk_ptr + where, dk.to(dk_ptr.dtype.element_ty), mask=ok)
        base = (batch * blocks + block) * D
        tl.store(soft_part_ptr + base + cols, tl.sum(ydy, axis=0), mask=cols < head * E + E)
