"""Compute focused linear attention so that no intermediate grows with N, the scale of q and k, or the power.

The function is the published one (`variants`), exact in real arithmetic; only the order of operations
differs.

    row      mu = max y, yh = y / mu in (0, 1], rh = |yh|, th = |yh^p| in [1, sqrt d];
             phi = (mu rh / th) yh^p
    keys     P_jc = K_jc / sum_j K_jc with K = phi(k): columns sum to one;  u_c = mean_j K_jc
             S_c = sum_j P_jc v_j: a convex combination of the values, so |S| <= max |v|
    queries  Q = (y / m)^p with m the maximum of the head: the largest entry is exactly 1;  phi(q) = alpha Q
             w_c = Q_c u_c and e = eps' / alpha, both divided by their joint maximum: W in [0, 1], E in [0, 1]
    out      = sum_c W_c S_c / D with D = sum_c W_c + E in [1, e + 1]

eps' is eps beside a mean and eps / s beside a sum of s keys. The backward is written out (`backward`): with g
the cotangent, V_c = W_c / D,

    c   = sum_c V_c (g . S_c)            h_q = V_c (g . S_c - c)          A_q = sum over heads of c E / D
    T_c = sum_i V_ic g_i                 t_c = -sum_i V_ic c_i
    h_k = P_jc (v_j . T_c + t_c)         dv_j = sum_c P_jc T_c            A_k = sum_c h_k
    y dy = p (h - A yh^2p / th^2) + A yh^2 / rh^2
    dx  = y dy / (relu(x) + 1e-6) where x > 0, else 0

where h = phi dL/dphi and A = sum_c h by Euler's identity. Derivation and bounds:
docs/focused-linear-attention.md.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from vitconv.kernels.focused.heads import join_heads, split_heads

FLOOR = 1e-6


class Rows(NamedTuple):
    """Keep what one token needs: y [b t d], and mu, rh, th [b t 1], jointly over all heads' channels."""

    y: Tensor
    mu: Tensor
    rh: Tensor
    th: Tensor


class Gradients(NamedTuple):
    """Hold the gradients in the core dtype: q, k, v [b t d], scale [1 1 d], position [1 s d] or None."""

    q: Tensor
    k: Tensor
    v: Tensor
    scale: Tensor
    position: Tensor | None


def core_dtype(*tensors: Tensor) -> torch.dtype:
    """Return float64 when an argument is float64, else float32: the dtype that every intermediate has."""
    return torch.float64 if any(t.dtype == torch.float64 for t in tensors) else torch.float32


def raise_power(y: Tensor, power: float) -> Tensor:
    """Raise y in [0, 1] to the power: by multiplication for whole numbers, else through exp2 and log2."""
    if float(power).is_integer() and 1 <= power <= 16:
        w, square, n = None, y, int(power)
        while n:
            if n & 1:
                w = square if w is None else w * square
            square, n = square * square, n >> 1
        assert w is not None
        return w
    return torch.exp2(power * torch.log2(y))


def row_statistics(x: Tensor, soft: Tensor, power: float) -> Rows:
    """Compute y = (relu(x) + 1e-6) / soft and its joint row statistics.

    x: [b t d], core dtype; soft = softplus(scale): [1 1 d].
    """
    y = (F.relu(x) + FLOOR) / soft
    mu = y.amax(dim=-1, keepdim=True)
    yh = y / mu
    wh = raise_power(yh, power)
    return Rows(y, mu, yh.square().sum(-1, keepdim=True).sqrt(), wh.square().sum(-1, keepdim=True).sqrt())


class Keys(NamedTuple):
    """Hold the state of the keys: P [b h s e], u [b h 1 e], S [b h e e], v [b h s e]."""

    p: Tensor
    u: Tensor
    s: Tensor
    v: Tensor


class Queries(NamedTuple):
    """Hold the weights of the queries: W / D [b h t e] and E / D [b h t 1]."""

    weight: Tensor
    rest: Tensor


def gather_keys(rows: Rows, v: Tensor, heads: int, power: float) -> Keys:
    """Reduce the keys to S and u; a channel on which every key underflows gets weight and column zero."""
    phi = split_heads(rows.mu * (rows.rh / rows.th) * raise_power(rows.y / rows.mu, power), heads)
    total = phi.sum(dim=-2, keepdim=True)
    p = phi / total.clamp_min(torch.finfo(phi.dtype).tiny)
    v = split_heads(v, heads)
    return Keys(p, total / phi.shape[-2], p.transpose(-2, -1) @ v, v)


def weigh_queries(rows: Rows, u: Tensor, heads: int, power: float, eps: float) -> Queries:
    """Compute W / D and E / D of each query; `eps` is the one that stands beside a mean."""
    tiny = torch.finfo(rows.y.dtype).tiny
    y = split_heads(rows.y, heads)
    m = y.amax(dim=-1, keepdim=True)
    mu, ratio = (x.unsqueeze(1) for x in (rows.mu, rows.rh / rows.th))
    alpha = mu * ratio * raise_power(m / mu, power)
    e = eps / alpha.clamp_min(tiny)
    w = raise_power(y / m, power) * u
    top = torch.maximum(w.amax(dim=-1, keepdim=True), e).clamp_min(tiny)
    w, e = w / top, e / top
    d = (w.sum(dim=-1, keepdim=True) + e).clamp_min(tiny)
    return Queries(w / d, e / d)


def mean_eps(eps: float, eps_mode: str, keys: int) -> float:
    """Translate the published eps into the one beside a mean over `keys` keys."""
    return eps / keys if eps_mode == "sum" else eps


def error_bound(power: float, width: int, head_width: int, keys: int) -> float:
    """Bound the error of `forward` in float32, relative to max |v|: a coefficient times 2^-24.

    Weights carry 4 p roundings of a power, log2(width) of a row norm, a few divisions; the same again through u, with a
    chain of additions that blocked sums keep below 512 + keys / 512. Normalised weights have twice the error of plain
    ones; the last sum adds head_width. Derivation: docs/focused-linear-attention.md.
    """
    chain = min(keys, 512 + keys // 512)
    row = 4 * power + math.log2(width) + 10
    return float(2 * (2 * row + chain) + 2 * (row + chain) + head_width) * 2.0**-24


def _wide(q: Tensor, k: Tensor, v: Tensor, scale: Tensor, position: Tensor | None) -> tuple[Tensor, ...]:
    core = core_dtype(q, k, v)
    k = k.to(core) if position is None else k.to(core) + position.to(core)
    return q.to(core), k, v.to(core), F.softplus(scale.to(core))


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: Tensor,
    position: Tensor | None,
    *,
    heads: int,
    power: float,
    eps: float,
    eps_mode: str,
) -> Tensor:
    """Compute the attention in the core dtype.

    q: [b t d], k and v: [b s d], any float dtype; scale: [1 1 d]; position: [1 s d] or None. Returns [b t d]
    in float64 for float64 input, else float32.
    """
    q, k, v, soft = _wide(q, k, v, scale, position)
    keys = gather_keys(row_statistics(k, soft, power), v, heads, power)
    eps = mean_eps(eps, eps_mode, k.shape[1])
    queries = weigh_queries(row_statistics(q, soft, power), keys.u, heads, power, eps)
    return join_heads(queries.weight @ keys.s)


def _feature_backward(h: Tensor, total: Tensor, rows: Rows, power: float) -> Tensor:
    """Turn h = phi dL/dphi into y dL/dy, both [b t d]; total = sum_c h, [b t 1]."""
    yh = rows.y / rows.mu
    share = (raise_power(yh, power) / rows.th).square()
    return power * (h - total * share) + total * (yh / rows.rh).square()


def backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: Tensor,
    position: Tensor | None,
    *,
    heads: int,
    power: float,
    eps: float,
    eps_mode: str,
) -> Gradients:
    """Compute all gradients for the cotangent grad: [b t d], float; other arguments as in `forward`.

    Returned in the core dtype. Nothing is kept from the forward pass: it is computed again.
    """
    xq, xk, xv, soft = _wide(q, k, v, scale, position)
    rq, rk = row_statistics(xq, soft, power), row_statistics(xk, soft, power)
    keys = gather_keys(rk, xv, heads, power)
    queries = weigh_queries(rq, keys.u, heads, power, mean_eps(eps, eps_mode, k.shape[1]))
    g = split_heads(grad.to(xq.dtype), heads)

    along = g @ keys.s.transpose(-2, -1)
    # Held against the channel that weighs most, whose difference from c would cancel: V sums to 1 - E / D.
    first = along.gather(-1, queries.weight.argmax(dim=-1, keepdim=True))
    beside = along - first
    c_beside = (queries.weight * beside).sum(dim=-1, keepdim=True)
    c = c_beside + (1 - queries.rest) * first
    h_q = queries.weight * (beside - c_beside + queries.rest * first)
    t = queries.weight.transpose(-2, -1) @ g
    # v_j . T_c + t_c, held against one column S for the same reason: t_c = sum_i h_q - S_c . T_c.
    top = keys.u.argmax(dim=-1, keepdim=True).expand(-1, -1, -1, keys.s.shape[-1])
    near = keys.s.gather(-2, top)
    rest = (h_q.sum(dim=-2) - ((keys.s - near) * t).sum(dim=-1)).unsqueeze(-2)
    h_k = keys.p * ((keys.v - near) @ t.transpose(-2, -1) + rest)

    h_k = join_heads(h_k)
    yq = _feature_backward(join_heads(h_q), (c * queries.rest).sum(dim=1), rq, power)
    yk = _feature_backward(h_k, h_k.sum(dim=-1, keepdim=True), rk, power)
    d_k = torch.where(xk > 0, yk / (F.relu(xk) + FLOOR), 0.0)
    d_soft = -((yq.sum((0, 1)) + yk.sum((0, 1))) / soft.flatten()).view_as(soft)
    return Gradients(
        q=torch.where(xq > 0, yq / (F.relu(xq) + FLOOR), 0.0),
        k=d_k,
        v=join_heads(keys.p @ t),
        scale=d_soft * torch.sigmoid(scale.to(soft.dtype)),
        position=None if position is None else d_k.sum(dim=0, keepdim=True),
    )
