"""Changes of a freshly built reference ViT that no attribute gives: modules are made to compute something else.

The network is thrown away after use, so an instance's own `forward` takes the place of its class's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from vitconv.parity.faults.backward import scaled_gradient
from vitconv.vit.activation import activation


def replace(module: Any, forward: Callable[..., Tensor]) -> None:
    """Let the module compute `forward`."""
    module.forward = forward


def skip(module: Any) -> None:
    """Let the module return what it is given."""
    replace(module, lambda x: x)


def drop_branch(module: Any) -> None:
    """Let a branch of a block, or a norm in it, give zeros."""
    replace(module, lambda x, *others: torch.zeros_like(x))


def apart(x: Tensor, heads: int) -> Tensor:
    """Return [b t (h e)] as [b h t e]."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def together(x: Tensor) -> Tensor:
    """Return [b h t e] as [b t (h e)]."""
    return x.transpose(1, 2).flatten(2)


def viewed_apart(x: Tensor, heads: int) -> Tensor:
    """Return the elements of [b t d] in the order they have, as [b h t e]: every head gets some of the tokens."""
    b, t, d = x.shape
    return x.reshape(b, heads, t, d // heads)


def viewed_together(x: Tensor) -> Tensor:
    """Return the elements of [b h t e] in the order they have, as [b t d]."""
    b, h, t, e = x.shape
    return x.reshape(b, t, h * e)


def attend(
    attn: Any,
    softmax: Callable[[Tensor], Tensor] = lambda logits: logits.softmax(-1),
    divide: Callable[[Tensor, int], Tensor] = apart,
    join: Callable[[Tensor], Tensor] = together,
    *,
    over_heads: bool = False,
) -> None:
    """Give the attention another softmax, logits [b h t t] to probabilities, or another way to heads and back.

    With `over_heads` it runs in each token over its heads, as a kernel for [b t h e] does that is given [b h t e].
    """

    def forward(queries: Tensor, others: Tensor, turn: Any = None, bias: Tensor | None = None) -> Tensor:
        def split(x: Tensor) -> Tensor:
            return divide(x, attn.heads)

        q, k, v = attn.q_norm(split(attn.q(queries))), attn.k_norm(split(attn.k(others))), split(attn.v(others))
        if turn is not None:
            from vitconv.vit.positions import turned

            q, k = turned(q, turn, attn.half), turned(k, turn, attn.half)
        if over_heads:
            q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        logits = (attn.scale * q) @ k.transpose(-2, -1)
        logits = logits if bias is None else logits + bias
        if attn.causal:
            ahead = torch.ones(logits.shape[-2:], dtype=torch.bool, device=logits.device).triu(1)
            logits = logits.masked_fill(ahead, float("-inf"))
        heads = softmax(logits) @ v
        return attn.out(attn.norm(join(heads.transpose(1, 2) if over_heads else heads)))

    replace(attn, forward)


def over_the_batch(attn: Any) -> None:
    """Take the batch for the sequence: [t b d] is read where [b t d] is given."""
    inner = attn.forward
    replace(attn, lambda queries, others: inner(queries.transpose(0, 1), others.transpose(0, 1)).transpose(0, 1))


def detach_probabilities(attn: Any) -> None:
    """Let no gradient pass through the attention probabilities."""
    attend(attn, lambda logits: logits.softmax(-1).detach())


def softmax_without_row_sum(attn: Any) -> None:
    """Give the softmax the gradient p g, without - p sum(p g)."""

    def softmax(logits: Tensor) -> Tensor:
        # exp(l - log sum exp(l)), the log of the sum being taken for a constant.
        return (logits - logits.logsumexp(-1, keepdim=True).detach()).exp()

    attend(attn, softmax)


class _Elementwise(torch.autograd.Function):
    """Softmax whose backward pass is that of a function of each element: p (1 - p) g."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor) -> Tensor:
        p = logits.softmax(-1)
        ctx.save_for_backward(p)
        return p

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (p,) = ctx.saved_tensors
        return p * (1 - p) * g


def softmax_elementwise(attn: Any) -> None:
    """Give the softmax the gradient p (1 - p) g, without what the others of the row add."""
    attend(attn, _Elementwise.apply)


def scale_gradient(module: nn.Module, factor: float) -> None:
    """Multiply the gradient that comes to the module's output."""
    module.register_forward_hook(lambda _m, _x, y: scaled_gradient(y, factor))


def detach_input(module: nn.Module) -> None:
    """Let no gradient pass to what is ahead of the module."""
    module.register_forward_pre_hook(lambda _m, args: (args[0].detach(), *args[1:]))


def with_derivative_of(mlp: Any, name: str) -> None:
    """Keep the activation's values and give it the derivative of another."""
    right, other = mlp.act, activation(name)

    def act(x: Tensor) -> Tensor:
        slope = other(x)
        return right(x).detach() + (slope - slope.detach())

    mlp.act = act


def with_slope(mlp: Any, kind: str) -> None:
    """Keep the activation's values and give it the slope `kind`: none, one, or gate, which is act(x) / x."""
    right = mlp.act

    def act(x: Tensor) -> Tensor:
        y = right(x).detach()
        if kind == "none":
            return y
        slope = torch.ones_like(y) if kind == "one" else torch.where(x == 0, 0.5, y / x).detach()
        return y + slope * (x - x.detach())

    mlp.act = act


def unbiased_variance(norm: Any) -> None:
    """Divide by the variance with n - 1."""

    def forward(x: Tensor) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        y = centred / (x.var(-1, keepdim=True) + norm.eps).sqrt() * norm.weight
        return y if norm.bias is None else y + norm.bias

    replace(norm, forward)


def detach_statistics(norm: Any) -> None:
    """Take mean and variance for constants in the backward pass."""

    def forward(x: Tensor) -> Tensor:
        if norm.kind == "layernorm":
            mean, square = x.mean(-1, keepdim=True), x.var(-1, correction=0, keepdim=True)
        else:
            mean, square = x.new_zeros(()), x.square().mean(-1, keepdim=True)
        y = (x - mean.detach()) / (square.detach() + norm.eps).sqrt() * norm.weight
        return y if norm.bias is None else y + norm.bias

    replace(norm, forward)


def parallel_branches(block: Any) -> None:
    """Let attention and MLP read the same input: x + f(n1(x)) + g(n2(x))."""

    def forward(x: Tensor, *more: Any) -> Tensor:
        one, two = (1.0 if ls is None else ls for ls in (block.ls1, block.ls2))
        normed = block.norm1(x)
        attended = block.attn(normed, x if block.raw_kv else normed, *more)
        return x + one * attended + two * block.mlp(block.norm2(x))

    replace(block, forward)


def residual_from_norm(block: Any, parts: tuple[str, ...]) -> None:
    """Add what these branches, attn or mlp, give to their norm's output: n(x) + f(n(x))."""

    def forward(x: Tensor, *more: Any) -> Tensor:
        one, two = (1.0 if ls is None else ls for ls in (block.ls1, block.ls2))
        normed = block.norm1(x)
        attended = one * block.attn(normed, x if block.raw_kv else normed, *more)
        y = (normed if "attn" in parts else x) + attended
        normed = block.norm2(y)
        return (normed if "mlp" in parts else y) + two * block.mlp(normed)

    replace(block, forward)


def class_token_last(model: Any) -> None:
    """Move the class token to the end of the stream, and let the pooling find it there."""
    model.embed.register_forward_hook(lambda _m, _x, y: y.roll(-1, 1))
    model.pool.register_forward_pre_hook(lambda _m, args: (args[0].roll(1, 1),))


def pool_token(model: Any, index: int) -> None:
    """Let the pooling take another token for the class token."""
    model.pool.register_forward_pre_hook(lambda _m, args: (args[0].roll(-index, 1),))


def patches_by_column(model: Any) -> None:
    """Number the patches column by column."""
    patch = model.embed.patch

    def forward(images: Tensor) -> Tensor:
        return functional.conv2d(images, patch.weight, patch.bias, patch.stride).transpose(2, 3)

    replace(patch, forward)


def norm_after_pooling(model: Any) -> None:
    """Apply the final norm to what is pooled."""
    inner = model.norm.forward
    skip(model.norm)
    replace(model.pool.norm, inner)


def norm_before_pooling(model: Any) -> None:
    """Apply the norm that belongs after pooling to every token ahead of it."""
    inner = model.pool.norm.forward
    skip(model.pool.norm)
    model.pool.register_forward_pre_hook(lambda _m, args: (inner(args[0]),))


def no_pool_norm(model: Any) -> None:
    """Skip the norm after pooling."""
    skip(model.pool.norm)


def no_pooler(model: Any) -> None:
    """Leave out the pooler's dense layer, and its tanh."""
    model.pool.dense = None


def no_pooler_tanh(model: Any) -> None:
    """Leave out the tanh after the pooler's dense layer."""
    dense, model.pool.dense = model.pool.dense, None
    model.pool.register_forward_hook(lambda _m, _x, y: dense(y))


def no_distillation_head(model: Any) -> None:
    """Answer with the class token's logits alone."""
    model.head_dist = None


def heads_summed(model: Any) -> None:
    """Add both classifiers' logits."""
    model.register_forward_hook(lambda _m, _x, y: 2 * y)
