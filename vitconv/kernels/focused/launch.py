"""Launch the Triton kernels of focused linear attention: tiles, scratch, the small reductions between them.

Partial sums are written per program and added here, so the result is deterministic: there are no atomics.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from vitconv.kernels.focused import triton_backward as backward_kernels
from vitconv.kernels.focused import triton_forward as forward_kernels
from vitconv.kernels.focused.stable import Gradients, mean_eps

if TYPE_CHECKING:
    from vitconv.kernels.focused.attention import Focus

PROGRAMS = 1024
_DOTS = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}


class State(NamedTuple):
    """Hold what the backward needs beside the inputs, all float32: soft [d], row statistics [b t], s, u, inv."""

    soft: Tensor
    mu_q: Tensor
    rh_q: Tensor
    th_q: Tensor
    mu_k: Tensor
    rh_k: Tensor
    th_k: Tensor
    s: Tensor
    u: Tensor
    inv: Tensor


class Tile(NamedTuple):
    """Hold the launch shape: tokens per block, padded head width, dot dtype and precision, warps."""

    tokens: int
    width: int
    dot: Any
    precision: str
    warps: int

    def constants(self, focus: Focus, head_width: int) -> dict[str, Any]:
        """Return the constexprs that every kernel but the statistics takes."""
        power = int(focus.power) if float(focus.power).is_integer() and focus.power < 32 else float(focus.power)
        return {
            "P": power, "E": head_width, "BT": self.tokens, "BE": self.width, "DOT": self.dot,
            "PRECISION": self.precision, "num_warps": self.warps,
        }  # fmt: skip


def tile(head_width: int, dtype: torch.dtype, tokens: int) -> Tile:
    """Choose a tile. The interpreter multiplies bfloat16 wrongly, so there dots take float32 operands."""
    interpreted = triton.knobs.runtime.interpret
    width = max(16, triton.next_power_of_2(head_width))
    # Masked lanes cost registers: with 64 tokens, head width 24 spills on compute capability 8.0.
    rows = 32 if width >= 64 or width != head_width or dtype == torch.float32 else 64
    rows = max(16, min(rows, triton.next_power_of_2(tokens)))
    dot = tl.float32 if interpreted and dtype == torch.bfloat16 else _DOTS[dtype]
    return Tile(rows, width, dot, "tf32x3" if dtype == torch.float32 else "ieee", 4)


def key_tile(head_width: int, dtype: torch.dtype, tokens: int) -> Tile:
    """Choose the tile of the key kernel, which holds most: fewer tokens, or more warps, so that none spill."""
    shape = tile(head_width, dtype, tokens)
    if dtype == torch.float32:
        return shape._replace(tokens=16)
    return shape._replace(warps=8) if shape.width >= 64 else shape


def split(tokens: int, block: int, others: int) -> tuple[int, int]:
    """Choose how many programs share the tokens of one (batch, head), and the chunk of each, a multiple of block."""
    blocks = triton.cdiv(tokens, block)
    chunk = block * triton.cdiv(blocks, max(1, min(blocks, PROGRAMS // max(1, others))))
    return triton.cdiv(tokens, chunk), chunk


def rowwise(x: Tensor) -> Tensor:
    """Return x with unit stride over its last axis, copied only when it has none."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _empty(like: Tensor, *shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.float32, device=like.device)


def _statistics(x: Tensor, position: Tensor | None, soft: Tensor, focus: Focus) -> tuple[Tensor, Tensor, Tensor]:
    b, t, d = x.shape
    mu, rh, th = (_empty(x, b, t) for _ in range(3))
    width = triton.next_power_of_2(d)
    rows = max(1, min(64, 4096 // width, triton.next_power_of_2(t)))
    power = tile(1, x.dtype, t).constants(focus, 1)["P"]
    forward_kernels.statistics_kernel[(b * triton.cdiv(t, rows),)](
        x, x if position is None else position, soft, mu, rh, th,
        x.stride(0), x.stride(1), d if position is None else position.stride(1), t, triton.cdiv(t, rows),
        P=power, HAS_POS=position is not None, D=d, BT=rows, BD=width, num_warps=4,
    )  # fmt: skip
    return mu, rh, th


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: Tensor,
    position: Tensor | None,
    add: Tensor | None,
    focus: Focus,
) -> tuple[Tensor, State]:
    """Run statistics, key state and output; q: [b t d], k, v: [b s d], add: [b t d] of any strides."""
    q, k, v = (rowwise(x) for x in (q, k, v))
    position = None if position is None else rowwise(position)
    (b, t, d), n, h = q.shape, k.shape[1], focus.heads
    e = d // h
    soft = F.softplus(scale.float()).flatten().contiguous()
    of_q, of_k = _statistics(q, None, soft, focus), _statistics(k, position, soft, focus)

    shape = tile(e, q.dtype, n)
    parts, chunk = split(n, shape.tokens, b * h)
    s, u = _empty(q, b, h, parts, e, e), _empty(q, b, h, parts, e)
    forward_kernels.state_kernel[(b * parts * h,)](
        k, v, k if position is None else position, soft, *of_k, s, u,
        k.stride(0), k.stride(1), v.stride(0), v.stride(1), d if position is None else position.stride(1), n, chunk,
        h, parts,
        HAS_POS=position is not None, **shape.constants(focus, e),
    )  # fmt: skip
    total = u.sum(dim=2)
    # A channel on which every key underflows has total 0, weight 0 and column 0.
    inv = torch.where(total > 0, 1.0 / total.clamp_min(torch.finfo(total.dtype).tiny), 0.0)
    s, u = s.sum(dim=2) * inv.unsqueeze(-1), total / n

    shape = tile(e, q.dtype, t)
    blocks = triton.cdiv(t, shape.tokens)
    out = torch.empty((b, t, d), dtype=v.dtype, device=q.device)
    more = q if add is None else add
    forward_kernels.output_kernel[(b * blocks * h,)](
        q, soft, *of_q, s, u, more, out, q.stride(0), q.stride(1), *more.stride(), t, h, blocks,
        mean_eps(focus.eps, focus.eps_mode, n), HAS_ADD=add is not None, D=d, **shape.constants(focus, e),
    )  # fmt: skip
    return out, State(soft, *of_q, *of_k, s, u, inv)


def backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: Tensor,
    position: Tensor | None,
    state: tuple[Tensor, ...],
    focus: Focus,
) -> Gradients:
    """Run the three backward kernels; dq, dk, dv come in the dtype of q, k, v, the rest in float32."""
    soft, mu_q, rh_q, th_q, mu_k, rh_k, th_k, s, u, inv = State(*state)
    grad, q, k, v = (rowwise(x) for x in (grad, q, k, v))
    position = None if position is None else rowwise(position)
    (b, t, d), n, h = q.shape, k.shape[1], focus.heads
    e, eps = d // h, mean_eps(focus.eps, focus.eps_mode, k.shape[1])

    shape = tile(e, q.dtype, t)
    parts, chunk = split(t, shape.tokens, b * h)
    sums, sums_h, part = _empty(q, b, h, parts, e, e), _empty(q, b, h, parts, e), _empty(q, b, t, h)
    of_q = (q, grad, soft, mu_q, rh_q, th_q, s, u)
    strides = (q.stride(0), q.stride(1), grad.stride(0), grad.stride(1), t)
    constants = shape.constants(focus, e)
    backward_kernels.reduce_kernel[(b * parts * h,)](
        *of_q, sums, sums_h, part, *strides, chunk, h, parts, eps, **constants
    )

    blocks = triton.cdiv(t, shape.tokens)
    dq, soft_q = torch.empty_like(q, memory_format=torch.contiguous_format), _empty(q, b, blocks, d)
    backward_kernels.query_kernel[(b * blocks * h,)](
        *of_q, part, dq, soft_q, *strides, blocks, eps, H=h, BH=triton.next_power_of_2(h), D=d, **constants
    )

    # v_j . T_c + t_c of `stable`, held against the row of S whose channel has most of the keys.
    total = sums.sum(dim=2)
    near = s.gather(-2, u.argmax(dim=-1)[..., None, None].expand(-1, -1, -1, e)).contiguous()
    rest = sums_h.sum(dim=2) - ((s - near) * total).sum(dim=-1)
    shape = key_tile(e, q.dtype, n)
    blocks = triton.cdiv(n, shape.tokens)
    dk, dv = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (k, v))
    soft_k = _empty(q, b, blocks, d)
    backward_kernels.key_kernel[(b * blocks,)](
        k, v, k if position is None else position, soft, mu_k, rh_k, th_k, total, rest, near, inv,
        dk, dv, soft_k,
        k.stride(0), k.stride(1), v.stride(0), v.stride(1), d if position is None else position.stride(1), n,
        blocks, HAS_POS=position is not None, H=h, D=d, **shape.constants(focus, e),
    )  # fmt: skip
    d_soft = -(soft_q.sum(dim=(0, 1)) + soft_k.sum(dim=(0, 1))) / soft
    placed = None if position is None else dk.sum(dim=0, keepdim=True, dtype=torch.float32)
    return Gradients(dq, dk, dv, (d_soft * torch.sigmoid(scale.float().flatten())).view_as(scale), placed)
