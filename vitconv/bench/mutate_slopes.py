"""Spoil the derivatives of a timm network's softmax and activation; values stay right. See `vitconv.bench.mutate`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import pi
from typing import Any

import torch
from torch import Tensor, nn

from vitconv.bench.mutate import Mutation, override
from vitconv.bench.mutate_block import attention, block, each, fake_derivative, plain_mlp, setting


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


def _features(last: int, norm: bool = False) -> Callable[[Any], None]:
    """Run the stem, the blocks up to `last` and, if asked to, the norm without gradients."""

    def plant(net: Any) -> None:
        def features(self: Any, x: Tensor, **_: Any) -> Tensor:
            with torch.no_grad():
                x = self.norm_pre(self._pos_embed(self.patch_embed(x)))
                for b in self.blocks[: last + 1]:
                    x = b(x)
            for b in self.blocks[last + 1 :]:
                x = b(x)
            with torch.set_grad_enabled(not norm):
                return self.norm(x)

        override(net, forward_features=features)

    return plant


def _frozen(path: str, only: list[int] | None = None) -> Callable[[Any], None]:
    def plant(net: Any) -> None:
        for j, b in enumerate(net.blocks):
            if only is None or j in only:
                module = b.get_submodule(path)
                override(module, forward=_without(type(module).forward))

    return plant


def _without(inner: Callable[..., Tensor]) -> Callable[..., Tensor]:
    @torch.no_grad()
    def forward(self: Any, *args: Any, **kwargs: Any) -> Tensor:
        return inner(self, *args, **kwargs)

    return forward


def _stream_of_attention(b: Any, x: Tensor) -> Tensor:
    x = x.detach() + b.ls1(b.attn(b.norm1(x)))
    return x + b.ls2(b.mlp(b.norm2(x)))


def _stream_of_mlp(b: Any, x: Tensor) -> Tensor:
    x = x + b.ls1(b.attn(b.norm1(x)))
    return x.detach() + b.ls2(b.mlp(b.norm2(x)))


def cuts() -> Iterator[Mutation]:
    """Yield what stops the gradient at a place."""
    yield Mutation("stem without gradients", ("backward-cut-embed",), _features(-1))
    yield Mutation("two blocks without gradients", ("backward-cut-block",), _features(1))
    # Where the norm stands behind the pooling, the last block ends the features.
    through = ("backward-cut-norm", "backward-cut-features", "backward-cut-block")
    yield Mutation("features without gradients", through, _features(99, norm=True))
    yield Mutation("a block without gradients", ("backward-cut-block",), _frozen("", [1]))
    yield Mutation("attention without gradients", ("backward-cut-attn-branch",), _frozen("attn"))
    yield Mutation("MLP without gradients", ("backward-cut-mlp-branch",), _frozen("mlp"))
    yield Mutation("stream detached at attention", ("backward-cut-attn-residual",), block(_stream_of_attention))
    yield Mutation("stream detached at the MLP", ("backward-cut-mlp-residual",), block(_stream_of_mlp))


def slopes() -> Iterator[Mutation]:
    """Yield wrong derivatives of softmax and activation, and what stops the gradient at a place."""
    yield from cuts()
    yield Mutation("softmax elementwise", ("backward-softmax-elementwise",), each("attn", attention(softmax=_apart)))
    for name, slope in _SLOPES.items():
        change = setting("mlp", "act", fake_derivative(nn.functional.gelu, slope))
        yield Mutation(f"slope {name} for GELU's", (f"backward-activation-slope-{name}",), change, plain_mlp)
