"""Parts of a freshly built reference ViT made to compute in half precision."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from vitconv.parity.faults.swaps import attend, replace


def norm_in_half(norm: Any, dtype: torch.dtype) -> None:
    """Compute the norm in half precision: input, parameters and result."""
    inner = norm.forward

    def forward(x: Tensor) -> Tensor:
        weight, bias = norm.weight.to(dtype), None if norm.bias is None else norm.bias.to(dtype)
        if norm.kind == "layernorm":
            return nn.functional.layer_norm(x.to(dtype), weight.shape, weight, bias, norm.eps).to(x.dtype)
        return inner(x.to(dtype).to(x.dtype)).to(dtype).to(x.dtype)

    replace(norm, forward)


def softmax_in_half(block: Any, dtype: torch.dtype) -> None:
    """Compute the softmax in half precision: logits and probabilities."""
    attend(block.attn, lambda logits: logits.to(dtype).softmax(-1).to(logits.dtype))


def residual_in_half(block: Any, dtype: torch.dtype) -> None:
    """Round the stream to half precision wherever a branch is added to it."""

    def branch(x: Tensor, y: Tensor, gain: Tensor | None, norm: nn.Module) -> Tensor:
        y = y if gain is None else gain * y
        if block.placement in ("pre", "none", "res-post"):
            return (x + y).to(dtype).to(x.dtype)
        return norm((block.alpha * x + y).to(dtype).to(x.dtype))

    def forward(x: Tensor, *more: Any) -> Tensor:
        pre, late = block.placement in ("pre", "none"), block.placement == "res-post"
        x = x.to(dtype).to(x.dtype)
        normed = block.norm1(x) if pre else x
        y = block.attn(normed, x if block.raw_kv else normed, *more)
        x = branch(x, block.norm1(y) if late else y, block.ls1, block.norm1)
        y = block.mlp(block.norm2(x) if pre else x)
        return branch(x, block.norm2(y) if late else y, block.ls2, block.norm2)

    replace(block, forward)


class _Rounded(torch.autograd.Function):
    """Round to 10 bits after the point, gradients too: they are operands of the products of the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return _ten_bits(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0]


def _ten_bits(x: Tensor) -> Tensor:
    from vitconv.parity.tf32 import round_tf32

    return round_tf32(x.float()).to(x.dtype)


def products_in_tf32(model: nn.Module) -> None:
    """Round what every projection reads; the products of attention itself stay."""
    for module in model.modules():
        if isinstance(module, (nn.Linear, nn.Conv2d)):
            module.register_forward_pre_hook(lambda _m, args: (_Rounded.apply(args[0]),))
