"""Run LayerNorm differentiably, by Triton where it can and by the plain reference where not; and as a module."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.overrides import handle_torch_function, has_torch_function

from vitconv.errors import UsageError
from vitconv.kernels.dispatch import Choice, Request, choose, same_device, together
from vitconv.kernels.layer_norm import reference

WIDTH = 8192


def plan(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    backend: str = "auto",
    out_dtype: torch.dtype | None = None,
) -> Choice:
    """Say which path `layer_norm` takes for these arguments, and why; nothing is computed."""
    objections = together(
        same_device((x, weight, bias)),
        f"width {x.shape[-1]} is above {WIDTH}" if x.shape[-1] > WIDTH else None,
        "the input is empty" if not x.numel() else None,
    )
    floats = (*(t.dtype for t in (x, weight, bias) if t is not None), out_dtype or x.dtype)
    return choose(Request("layer norm", x.device.type, floats, objections), backend)


def _rows(x: Tensor) -> Tensor:
    flat = x.reshape(-1, x.shape[-1])
    return flat if flat.stride(-1) == 1 or not flat.numel() else flat.contiguous()


class _LayerNorm(torch.autograd.Function):
    """Tie forward and backward; x itself is kept, with two float32 numbers per row."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        eps: float,
        out_dtype: torch.dtype,
        backend: str,
    ) -> Tensor:
        rows = _rows(x)
        ctx.choice = plan(x, weight, bias, backend, out_dtype)
        if ctx.choice.triton:
            from vitconv.kernels.layer_norm import launch

            weight = None if weight is None else weight.contiguous()
            y, statistics = launch.forward(rows, weight, None if bias is None else bias.contiguous(), eps, out_dtype)
        else:
            y, statistics = reference.forward(rows, weight, bias, eps, out_dtype)
        ctx.save_for_backward(rows, weight, *statistics)
        ctx.shape, ctx.bias_dtype = x.shape, None if bias is None else bias.dtype
        return y.view(x.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        x, weight, mean, rstd = ctx.saved_tensors
        statistics, grad = reference.Statistics(mean, rstd), _rows(grad)
        if ctx.choice.triton:
            from vitconv.kernels.layer_norm import launch

            dx, dw, db = launch.backward(grad, x, weight, statistics, has_bias=ctx.bias_dtype is not None)
        else:
            dx, dw, db = reference.backward(grad, x, weight, statistics)
        dw = None if weight is None or dw is None else dw.to(weight.dtype)
        db = None if ctx.bias_dtype is None or db is None else db.to(ctx.bias_dtype)
        return dx.view(ctx.shape), dw, db, None, None, None


def layer_norm(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-6,
    *,
    out_dtype: torch.dtype | None = None,
    backend: str = "auto",
) -> Tensor:
    """Normalise x: [... d] over its last axis; weight, bias: [d] or None; each of any float dtype of its own.

    Returns [... d] in `out_dtype`, by default the dtype of x. With `out_dtype` the autocast dtype, a
    pre-norm block saves the cast and its traffic: one rounding of a float32 value either way. Raises
    UsageError for shapes that do not fit.
    """
    tensors = (x, weight, bias)
    if has_torch_function(tensors):
        return handle_torch_function(layer_norm, tensors, x, weight, bias, eps, out_dtype=out_dtype, backend=backend)
    wrong = [f"{n} {list(t.shape)}" for n, t in (("weight", weight), ("bias", bias))
             if t is not None and t.shape != x.shape[-1:]]  # fmt: skip
    if wrong or x.dim() < 1 or eps < 0:
        raise UsageError(f"layer norm of x {list(x.shape)}, eps {eps}: {', '.join(wrong) or 'eps'} does not fit")
    return _LayerNorm.apply(x, weight, bias, eps, out_dtype or x.dtype, backend)


class LayerNorm(nn.Module):
    """Normalise over the last axis; state-dict keys and initial values (1, 0) are those of torch.nn.LayerNorm.

    `emit` says in which dtype the result comes: "input" (as xformers and Liger do), "float32" (as torch
    under autocast), or "autocast" (the autocast dtype where autocast is on, for pre-norm blocks whose
    consumers would cast anyway).
    """

    def __init__(
        self, dim: int, eps: float = 1e-6, *, affine: bool = True, bias: bool = True, emit: str = "input",
        backend: str = "auto",
    ) -> None:  # fmt: skip
        super().__init__()
        if emit not in ("input", "float32", "autocast"):
            raise UsageError(f"emit {emit!r}: expected 'input', 'float32' or 'autocast'")
        self.eps, self.emit, self.backend = eps, emit, backend
        self.weight = nn.Parameter(torch.ones(dim)) if affine else None
        self.bias = nn.Parameter(torch.zeros(dim)) if affine and bias else None

    def out_dtype(self, x: Tensor) -> torch.dtype:
        """Return the dtype that `emit` asks for with x as input."""
        if self.emit == "float32":
            return torch.promote_types(x.dtype, torch.float32)
        if self.emit == "autocast" and torch.is_autocast_enabled(x.device.type):
            return torch.get_autocast_dtype(x.device.type)
        return x.dtype

    def forward(self, x: Tensor) -> Tensor:
        """Normalise x: [... d]."""
        return layer_norm(x, self.weight, self.bias, self.eps, out_dtype=self.out_dtype(x), backend=self.backend)
