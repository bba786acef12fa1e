"""Run the bounded focused linear attention differentiably, by Triton where it can, else by plain PyTorch.

The core runs in float32 (float64 for float64 input) whatever autocast says: under autocast the function is
neither cast nor split, and its output has the dtype of v. A torch function mode sees it as one call.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.overrides import handle_torch_function, has_torch_function

from vitconv.errors import UsageError
from vitconv.kernels.dispatch import Choice, Request, choose, same_device, together
from vitconv.kernels.focused import stable

TRITON_HEAD_WIDTH = 64
TRITON_WIDTH = 2048


@dataclass(frozen=True, slots=True)
class Focus:
    """Hold what is no tensor: heads, power (the focusing factor), eps and its mode, the backend asked for."""

    heads: int
    power: float = 3
    eps: float = 1e-6
    eps_mode: str = "mean"
    backend: str = "auto"


def _check(q: Tensor, k: Tensor, v: Tensor, scale: Tensor, position: Tensor | None, focus: Focus) -> None:
    problems = []
    if q.dim() != 3 or k.dim() != 3 or k.shape != v.shape or q.shape[0] != k.shape[0] or q.shape[2] != k.shape[2]:
        problems.append(f"q {list(q.shape)}, k {list(k.shape)}, v {list(v.shape)}: expected [b t d], [b s d], [b s d]")
    if scale.numel() != q.shape[-1]:
        problems.append(f"scale {list(scale.shape)}: expected [1 1 {q.shape[-1]}]")
    if position is not None and tuple(position.shape) != (1, *k.shape[1:]):
        problems.append(f"position {list(position.shape)}: expected {[1, *k.shape[1:]]}")
    if focus.heads < 1 or q.shape[-1] % focus.heads:
        problems.append(f"width {q.shape[-1]} does not divide into {focus.heads} heads")
    if focus.eps_mode not in ("sum", "mean"):
        problems.append(f"eps_mode {focus.eps_mode!r}: expected 'sum' or 'mean'")
    if not focus.power > 0 or focus.eps < 0:
        problems.append(f"power {focus.power} and eps {focus.eps}: expected power > 0 and eps >= 0")
    if problems:
        raise UsageError("focused linear attention: " + "; ".join(problems))


def plan(q: Tensor, k: Tensor, v: Tensor, scale: Tensor, position: Tensor | None, focus: Focus) -> Choice:
    """Say which path `focused_attention` takes for these arguments, and why; nothing is computed."""
    width, e = q.shape[-1], q.shape[-1] // focus.heads
    mixed = len({q.dtype, k.dtype, v.dtype}) > 1
    objections = together(
        same_device((q, k, v, scale, position)),
        f"q, k, v have dtypes {q.dtype}, {k.dtype}, {v.dtype}" if mixed else None,
        f"head width {e} is above {TRITON_HEAD_WIDTH}" if e > TRITON_HEAD_WIDTH else None,
        "head width 33 to 64 in float32 does not fit the registers" if e > 32 and q.dtype == torch.float32 else None,
        f"width {width} is above {TRITON_WIDTH}" if width > TRITON_WIDTH else None,
        "an input is empty" if not (q.numel() and k.numel()) else None,
    )
    floats = tuple(t.dtype for t in (q, k, v, scale, position) if t is not None)
    return choose(Request("focused attention", q.device.type, floats, objections), focus.backend)


class _Focused(torch.autograd.Function):
    """Tie the forward to the explicit backward; only the inputs (and the kernels' small states) are kept."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        scale: Tensor,
        position: Tensor | None,
        add: Tensor | None,
        focus: Focus,
    ) -> Tensor:
        ctx.focus, ctx.choice = focus, plan(q, k, v, scale, position, focus)
        ctx.add_dtype = None if add is None else add.dtype
        if ctx.choice.triton:
            from vitconv.kernels.focused import launch

            out, state = launch.forward(q, k, v, scale, position, add, focus)
            ctx.save_for_backward(q, k, v, scale, position, *state)
            return out
        with torch.autocast(device_type=q.device.type, enabled=False):
            out = stable.forward(
                q,
                k,
                v,
                scale,
                position,
                heads=focus.heads,
                power=focus.power,
                eps=focus.eps,
                eps_mode=focus.eps_mode,
            )
            out = out if add is None else out + add.to(out.dtype)
        ctx.save_for_backward(q, k, v, scale, position)
        return out.to(v.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        q, k, v, scale, position, *state = ctx.saved_tensors
        focus = ctx.focus
        if ctx.choice.triton:
            from vitconv.kernels.focused import launch

            got = launch.backward(grad, q, k, v, scale, position, tuple(state), focus)
        else:
            with torch.autocast(device_type=q.device.type, enabled=False):
                got = stable.backward(
                    grad, q, k, v, scale, position,
                    heads=focus.heads, power=focus.power, eps=focus.eps, eps_mode=focus.eps_mode,
                )  # fmt: skip
        placed = None if position is None or got.position is None else got.position.to(position.dtype)
        return (
            got.q.to(q.dtype),
            got.k.to(k.dtype),
            got.v.to(v.dtype),
            got.scale.to(scale.dtype).view_as(scale),
            placed,
            None if ctx.add_dtype is None else grad.to(ctx.add_dtype),
            None,
        )


def focused_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: Tensor,
    position: Tensor | None,
    *,
    heads: int,
    power: float = 3,
    eps: float = 1e-6,
    eps_mode: str = "mean",
    add: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """Compute bounded focused linear attention, plus `add` (the depthwise branch) before the one rounding.

    q: [b t d], k and v: [b s d], float64, float32, float16 or bfloat16; scale: [1 1 d] (before softplus) and
    position: [1 s d] or None, any float dtype; add: [b t d] or None, any strides. Returns [b t d] in the
    dtype of v. `eps_mode` is "mean" as published since e205a01 or "sum" as before. Raises UsageError for
    shapes that do not fit and Refused when backend "triton" cannot run. Source of the function: arXiv
    2308.00442; of this form: docs/.
    """
    tensors = (q, k, v, scale, position, add)
    if has_torch_function(tensors):
        return handle_torch_function(
            focused_attention, tensors, q, k, v, scale, position,
            heads=heads, power=power, eps=eps, eps_mode=eps_mode, add=add, backend=backend,
        )  # fmt: skip
    focus = Focus(heads, power, eps, eps_mode, backend)
    _check(q, k, v, scale, position, focus)
    return _Focused.apply(q, k, v, scale, position, add, focus)
