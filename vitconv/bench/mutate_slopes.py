"""Spoil the derivatives of a timm network's softmax and activation; values stay right. See `vitconv.bench.mutate`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import pi
from typing import Any

import torch
from torch import Tensor, nn

from vitconv.bench.mutate import Mutation
from vitconv.bench.mutate_block import attention, each, fake_derivative, plain_mlp, setting


class _Apart(torch.autograd.Function):
    """Softmax with the derivative of each element alone."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x.softmax(-1)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        return g * (y - y * y)


def _apart(x: Tensor) -> Tensor:
    return _Apart.apply(x)


_SLOPES: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda x: x * 0,
    "one": lambda x: x,
    # Its derivative is Phi(x), that of x Phi(x) without x phi(x).
    "gate": lambda x: 0.5 * x * (1 + torch.erf(x * 0.5**0.5)) + (-0.5 * x * x).exp() * (2 * pi) ** -0.5,
}


def slopes() -> Iterator[Mutation]:
    """Yield them."""
    yield Mutation("softmax elementwise", ("backward-softmax-elementwise",), each("attn", attention(softmax=_apart)))
    for name, slope in _SLOPES.items():
        change = setting("mlp", "act", fake_derivative(nn.functional.gelu, slope))
        yield Mutation(f"slope {name} for GELU's", (f"backward-activation-slope-{name}",), change, plain_mlp)
