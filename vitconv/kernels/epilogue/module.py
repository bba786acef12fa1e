"""Run bias + GELU + dropout differentiably, by Triton where it can and by the plain reference where not."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.overrides import handle_torch_function, has_torch_function

from vitconv.errors import UsageError
from vitconv.kernels.dispatch import Choice, Request, choose, same_device, together
from vitconv.kernels.epilogue import reference
from vitconv.kernels.epilogue.philox import threshold


def plan(x: Tensor, bias: Tensor | None, p: float = 0.0, backend: str = "auto") -> Choice:
    """Say which path `epilogue` takes for these arguments, and why; nothing is computed."""
    objections = together(
        same_device((x, bias)),
        "the input is empty" if not x.numel() else None,
        f"p = {p} drops everything" if threshold(p) >= 2**32 else None,
    )
    floats = tuple(t.dtype for t in (x, bias) if t is not None)
    return choose(Request("mlp epilogue", x.device.type, floats, objections), backend)


def _rows(x: Tensor) -> Tensor:
    flat = x.reshape(-1, x.shape[-1])
    return flat if flat.stride(-1) == 1 or not flat.numel() else flat.contiguous()


class _Epilogue(torch.autograd.Function):
    """Tie forward and backward; the input is kept, the mask is drawn again from its seed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor | None, activation: str, p: float, seed: int, backend: str) -> Tensor:
        rows = _rows(x)
        ctx.choice, ctx.settings, ctx.shape = plan(x, bias, p, backend), (activation, p, seed), x.shape
        ctx.save_for_backward(rows, bias)
        if ctx.choice.triton:
            from vitconv.kernels.epilogue import launch

            y = launch.forward(rows, None if bias is None else bias.contiguous(), activation, p, seed)
        else:
            y = reference.forward(rows, bias, activation, p, seed)
        return y.view(x.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        x, bias = ctx.saved_tensors
        grad = _rows(grad)
        if ctx.choice.triton:
            from vitconv.kernels.epilogue import launch

            dx, db = launch.backward(grad, x, None if bias is None else bias.contiguous(), *ctx.settings)
        else:
            dx, db = reference.backward(grad, x, bias, *ctx.settings)
        return dx.view(ctx.shape), None if bias is None else db.to(bias.dtype), None, None, None, None


def epilogue(
    x: Tensor,
    bias: Tensor | None = None,
    *,
    activation: str = "erf",
    p: float = 0.0,
    seed: int = 0,
    backend: str = "auto",
) -> Tensor:
    """Compute dropout(gelu(x + bias)) for x: [... m] and bias: [m] or None; returns [... m] in the dtype of x.

    `activation` is "erf" or "tanh"; p the probability of dropping, applied whenever it is above 0; `seed` any 64-bit
    number. Raises UsageError for arguments that do not fit.
    """
    tensors = (x, bias)
    if has_torch_function(tensors):
        return handle_torch_function(epilogue, tensors, x, bias, activation=activation, p=p, seed=seed, backend=backend)
    problems = together(
        f"activation {activation!r}: expected one of {', '.join(reference.ACTIVATIONS)}"
        if activation not in reference.ACTIVATIONS
        else None,
        f"p {p}: expected 0 to 1" if not 0 <= p <= 1 else None,
        f"bias {list(bias.shape)} and x {list(x.shape)}" if bias is not None and bias.shape != x.shape[-1:] else None,
        f"seed {seed}: expected 0 to 2^63 - 1" if not 0 <= seed < 2**63 else None,
    )
    if problems:
        raise UsageError("mlp epilogue: " + "; ".join(problems))
    return _Epilogue.apply(x, bias, activation, p, seed, backend)


class MlpEpilogue(nn.Module):
    """Add a bias, apply GELU, drop out while training.

    The bias is a parameter: saved, trained, and zero at first (in xformers' FusedMLP it is none of these
    since 0.0.8). Each training call draws a seed from torch's CPU generator, so manual_seed repeats the
    masks.
    """

    def __init__(
        self, dim: int, *, activation: str = "erf", p: float = 0.0, bias: bool = True, backend: str = "auto"
    ) -> None:
        super().__init__()
        self.activation, self.p, self.backend = activation, p, backend
        self.bias = nn.Parameter(torch.zeros(dim)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """Map x: [... dim]."""
        p = self.p if self.training else 0.0
        seed = int(torch.randint(2**63 - 1, ()).item()) if p > 0 else 0
        return epilogue(x, self.bias, activation=self.activation, p=p, seed=seed, backend=self.backend)
