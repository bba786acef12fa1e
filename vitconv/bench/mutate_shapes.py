"""Spoil which axes a timm network takes for which, on purpose: heads, tokens, batch. See `vitconv.bench.mutate`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from vitconv.bench.mutate import Mutation
from vitconv.bench.mutate_block import attention, block, each, no_qk_norm, rows


def reshaping() -> Iterator[Mutation]:
    """Yield mutations of reshapes that keep all sizes, of the scale, and of what the residual is added to."""
    yield Mutation("scale divided by", ("scale-inverse",), each("attn", attention(scale=lambda s, e, a: 1 / s)))
    count = attention(scale=lambda s, e, a: (a // e) ** -0.5)
    # With as many heads as channels in each, it is the right one.
    yield Mutation("scale of the number of heads", ("scale-heads", "scale-sqrt2"), each("attn", count), _uneven)
    unturned = attention(mix=lambda y: y.reshape(y.shape[0], y.shape[2], -1))
    yield Mutation("heads joined as they lie", ("heads-joined-by-view",), each("attn", unturned))
    yield Mutation("heads cut as they lie", ("heads-cut-by-view",), each("attn", _cut))
    yield Mutation("heads cut as they lie, joined rightly", ("heads-cut-by-view-alone",), each("attn", _cut_alone))
    # Rows (b h) are dealt out to heads as if they were (h b).
    mixed = attention(mix=lambda y: torch.cat(y.flatten(0, 1).chunk(y.shape[1]), -1))
    yield Mutation("examples and heads exchanged", ("heads-joined-over-batch",), each("attn", mixed))
    yield Mutation("heads for tokens", ("over-heads",), each("attn", _over_heads))
    turned = partial(_over_heads, turned=True)
    yield Mutation("heads for tokens, joined unturned", ("over-heads-joined-by-view",), each("attn", _method(turned)))
    softmax = attention(softmax=lambda x: x.exp() / x.exp().sum(1, keepdim=True))
    yield Mutation("softmax over heads", ("softmax-over-heads",), each("attn", softmax))
    softmax = attention(softmax=lambda x: x.exp() / x.exp().sum((0, 1), keepdim=True))
    yield Mutation("softmax over examples and heads", ("softmax-over-batch",), each("attn", softmax))
    for order in ("qkk", "qkq", "qqv", "qvv", "kkv", "vkv"):
        reused = each("attn.qkv", rows(partial(_parts, order)))
        yield Mutation(f"rows {order}", (f"qkv-reused-{order}",), reused)
    yield Mutation("one head", ("heads-one",), each("attn", attention(heads=lambda h: 1)), no_qk_norm)
    yield Mutation("attention over the batch", ("over-batch",), each("attn", _over_batch(attention())))
    yield Mutation("residuals of the norms", ("residual-from-norm",), block(_residuals_of_norms))
    yield Mutation("attention's residual of the norm", ("attn-residual-from-norm",), block(_first_of_norm))
    yield Mutation("MLP's residual of the norm", ("mlp-residual-from-norm",), block(_second_of_norm))


def _parts(order: str, w: Tensor) -> Tensor:
    return torch.cat([w.chunk(3)["qkv".index(part)] for part in order])


def _uneven(net: Any) -> bool:
    attn = net.blocks[0].attn
    return attn.qkv.out_features // 3 != attn.num_heads**2


def _cut(self: Any, x: Tensor, **_: Any) -> Tensor:
    b, t, _d = x.shape
    q, k, v = (p.reshape(b, self.num_heads, t, -1) for p in self.qkv(x).chunk(3, -1))
    weights = (self.q_norm(q) * self.scale @ self.k_norm(k).transpose(-2, -1)).softmax(-1)
    return self.proj(self.norm((weights @ v).reshape(b, t, -1)))


def _cut_alone(self: Any, x: Tensor, **_: Any) -> Tensor:
    b, t, _d = x.shape
    q, k, v = (p.reshape(b, self.num_heads, t, -1) for p in self.qkv(x).chunk(3, -1))
    weights = (self.q_norm(q) * self.scale @ self.k_norm(k).transpose(-2, -1)).softmax(-1)
    return self.proj(self.norm(torch.cat((weights @ v).unbind(1), -1)))


def _over_heads(self: Any, x: Tensor, turned: bool = False, **_: Any) -> Tensor:
    b, t, _d = x.shape
    q, k, v = self.qkv(x).view(b, t, 3, self.num_heads, -1).unbind(2)
    y = torch.nn.functional.scaled_dot_product_attention(self.q_norm(q), self.k_norm(k), v)
    return self.proj(self.norm((y.transpose(1, 2) if turned else y).reshape(b, t, -1)))


def _method(forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
    # A partial is no method: the module must come as its first argument.
    return lambda self, x, **more: forward(self, x, **more)


def _over_batch(inner: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda self, x, **more: inner(self, x.transpose(0, 1), **more).transpose(0, 1)


def _residuals_of_norms(b: Any, x: Tensor) -> Tensor:
    x = b.norm1(x)
    x = x + b.ls1(b.attn(x))
    x = b.norm2(x)
    return x + b.ls2(b.mlp(x))


def _first_of_norm(b: Any, x: Tensor) -> Tensor:
    x = b.norm1(x)
    x = x + b.ls1(b.attn(x))
    return x + b.ls2(b.mlp(b.norm2(x)))


def _second_of_norm(b: Any, x: Tensor) -> Tensor:
    x = b.norm2(x + b.ls1(b.attn(b.norm1(x))))
    return x + b.ls2(b.mlp(x))
