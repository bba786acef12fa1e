"""Spoil the blocks of a timm network on purpose: attention, MLP, norms, residuals. See `vitconv.bench.mutate`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from vitconv.bench.mutate import Mutation, linear, override, rows

Attend = Callable[..., Tensor]


def each(path: str, forward: Callable[..., Tensor], only: Sequence[int] | None = None) -> Callable[[Any], None]:
    """Give a module of every block, or of some, another forward."""

    def plant(net: Any) -> None:
        for i, block in enumerate(net.blocks):
            if only is None or i in only:
                override(block.get_submodule(path) if path else block, forward=forward)

    return plant


def setting(path: str, name: str, value: Any, only: Sequence[int] | None = None) -> Callable[[Any], None]:
    """Set an attribute of a module of every block, or of some."""

    def plant(net: Any) -> None:
        for i, block in enumerate(net.blocks):
            if only is None or i in only:
                setattr(block.get_submodule(path), name, value)

    return plant


def both(*plants: Callable[[Any], None]) -> Callable[[Any], None]:
    """Plant several."""

    def plant(net: Any) -> None:
        for one in plants:
            one(net)

    return plant


def attention(
    *,
    scale: Callable[[float, int, int], float] | None = None,
    heads: Callable[[int], int] | None = None,
    logits: Callable[[Tensor], Tensor] = lambda x: x,
    softmax: Callable[[Tensor], Tensor] = lambda x: x.softmax(-1),
    parts: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, ...]] = lambda q, k, v: (q, k, v),
    norms: bool = True,
    mix: Callable[[Tensor], Tensor] = lambda x: x.transpose(1, 2).flatten(2),
) -> Attend:
    """Return the forward of an attention, written out, with some of its steps exchanged."""

    def forward(self: Any, x: Tensor, **_: Any) -> Tensor:
        n = self.num_heads if heads is None else heads(self.num_heads)
        a = self.qkv.out_features // 3
        q, k, v = (t.unflatten(2, (n, -1)).transpose(1, 2) for t in self.qkv(x).split(a, -1))
        if norms:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k, v = parts(q, k, v)
        factor = (a // n) ** -0.5 if scale is None else scale(self.scale, a // n, a)
        weights = softmax(logits(torch.einsum("bhie,bhje->bhij", q, k) * factor))
        return self.proj_drop(self.proj(self.norm(mix(weights @ v))))

    return forward


def block(wiring: Callable[[Any, Tensor], Tensor]) -> Callable[[Any], None]:
    """Rewire every block."""

    def forward(self: Any, x: Tensor, **_: Any) -> Tensor:
        return wiring(self, x)

    return each("", forward)


def _raw_kv(b: Any, x: Tensor) -> Tensor:
    a, n = b.attn, b.norm1(x)
    width = a.qkv.out_features // 3
    w, bias = a.qkv.weight, a.qkv.bias
    q = nn.functional.linear(n, w[:width], bias[:width])
    k, v = nn.functional.linear(x, w[width:], bias[width:]).chunk(2, -1)
    q, k, v = (t.unflatten(2, (a.num_heads, -1)).transpose(1, 2) for t in (q, k, v))
    y = torch.nn.functional.scaled_dot_product_attention(a.q_norm(q), a.k_norm(k), v)
    x = x + b.ls1(a(y.transpose(1, 2).flatten(2)))
    return x + b.ls2(b.mlp(b.norm2(x)))


def _given(self: Any, x: Tensor, **_: Any) -> Tensor:
    return self.proj(self.norm(x))


def eps(path: str, value: float, only: Sequence[int] | None = None) -> Callable[[Any], None]:
    """Set the eps of a norm."""
    return setting(path, "eps", value, only)


def _squared(self: Any, x: Tensor) -> Tensor:
    return x * self.gamma * self.gamma


def _frozen(self: Any, x: Tensor) -> Tensor:
    return x * self.gamma.detach()


def _swap_scales(b: Any, x: Tensor) -> Tensor:
    x = x + b.attn(b.norm1(x)) * b.ls2.gamma
    return x + b.mlp(b.norm2(x)) * b.ls1.gamma


def _post(b: Any, x: Tensor) -> Tensor:
    x = b.norm1(x + b.ls1(b.attn(x)))
    return b.norm2(x + b.ls2(b.mlp(x)))


def _res_post(b: Any, x: Tensor) -> Tensor:
    x = x + b.ls1(b.norm1(b.attn(x)))
    return x + b.ls2(b.norm2(b.mlp(x)))


def _parallel(b: Any, x: Tensor) -> Tensor:
    return x + b.ls1(b.attn(b.norm1(x))) + b.ls2(b.mlp(b.norm2(x)))


def _swap_norms(b: Any, x: Tensor) -> Tensor:
    x = x + b.ls1(b.attn(b.norm2(x)))
    return x + b.ls2(b.mlp(b.norm1(x)))


def exchange(i: int, j: int) -> Callable[[Any], None]:
    """Let two blocks compute with each other's tensors; they keep their names."""

    def plant(net: Any) -> None:
        one, two = net.blocks[i], net.blocks[j]
        for (path, mine), (_, other) in zip(one.named_modules(), two.named_modules(), strict=True):
            del path
            if isinstance(mine, (nn.Linear, nn.LayerNorm)) or "gamma" in dict(mine.named_parameters(recurse=False)):
                _use(mine, other)

    return plant


def _use(mine: Any, other: Any) -> None:
    # Hidden in tuples from the module tree, so that a state dict keeps its names.
    mine.twin, other.twin = (other,), (mine,)
    for module in (mine, other):
        whole = type(module).forward
        override(module, forward=lambda self, x, whole=whole: whole(self.twin[0], x))


def _round(dtype: torch.dtype, *kinds: type[nn.Module]) -> Callable[[Any], None]:
    def plant(net: Any) -> None:
        every = list(net.parameters()) if not kinds else [m.weight for m in net.modules() if isinstance(m, kinds)]
        with torch.no_grad():
            for p in every:
                p.copy_(p.to(dtype))

    return plant


def _per_head(w: Tensor, heads: int) -> Tensor:
    return torch.cat([w.view(heads, 3, -1, *w.shape[1:])[:, j].flatten(0, 1) for j in range(3)])


def _regroup(change: Callable[[Tensor, int], Tensor], bias: bool = True) -> Callable[[Any], None]:
    def plant(net: Any) -> None:
        for b in net.blocks:
            heads = b.attn.num_heads

            def turn(w: Tensor, heads: int = heads) -> Tensor:
                return change(w, heads)

            override(b.attn.qkv, forward=rows(turn) if bias else linear(turn))

    return plant


def _to_fused(w: Tensor, heads: int) -> Tensor:
    return torch.stack(list(w.view(3, heads, -1, *w.shape[1:])), 1).flatten(0, 2)


def _heads_last(w: Tensor, heads: int) -> Tensor:
    return torch.cat([p.view(-1, heads, *w.shape[1:]).transpose(0, 1).flatten(0, 1) for p in w.chunk(3)])


def _order(order: str) -> Callable[[Tensor], Tensor]:
    return lambda w: torch.cat([dict(zip("qkv", w.chunk(3), strict=True))[part] for part in order])


def _no(*parts: int) -> Callable[[Tensor], Tensor]:
    def change(b: Tensor) -> Tensor:
        mask = torch.ones(3, dtype=b.dtype)
        mask[list(parts)] = 0
        return b * mask.repeat_interleave(len(b) // 3)

    return change


def fake_derivative(act: Callable[[Tensor], Tensor], other: Callable[[Tensor], Tensor]) -> nn.Module:
    """Return a module with the values of one function and the derivative of another."""

    class Act(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            slope = other(x)
            return slope - (slope - act(x)).detach()

    return Act()


def in_blocks() -> Iterator[Mutation]:
    """Yield the mutations of the blocks."""
    for order in ("qvk", "kqv", "kvq", "vqk", "vkq"):
        yield Mutation(f"rows {order}", (f"qkv-order-{order}",), each("attn.qkv", rows(_order(order))))
    yield Mutation("rows read per head", ("heads-per-head",), _regroup(_per_head))
    yield Mutation("per-head rows read as fused", ("heads-fused",), _regroup(_to_fused))
    yield Mutation("weight per head, bias not", ("heads-per-head-weight",), _regroup(_per_head, bias=False), qkv_bias)
    yield Mutation("head axis last", ("heads-last",), _regroup(_heads_last))
    wrong = attention(mix=lambda x: x.permute(0, 2, 3, 1).flatten(2))
    yield Mutation("output columns (e h)", ("out-heads-first", "out-heads-last"), each("attn", wrong))
    plain = attention(heads=lambda h: 2 * h)
    yield Mutation("heads doubled", ("heads-doubled",), each("attn", plain), no_qk_norm)
    plain = attention(heads=lambda h: h // 2)
    yield Mutation("heads halved", ("heads-halved",), each("attn", plain), no_qk_norm)
    for name, parts, truth in (
        ("query", (0,), "q-bias-missing"),
        ("value", (2,), "v-bias-missing"),
        ("every", (0, 1, 2), "qkv-bias-missing"),
    ):
        plant = each("attn.qkv", linear(bias=_no(*parts)))
        yield Mutation(f"no {name} bias", (truth,), plant, qkv_bias)
    plant = each("attn.qkv", linear(bias=_no(1)))
    yield Mutation("no key bias", ("k-bias-missing", ""), plant, lambda net: qkv_bias(net) and no_qk_norm(net))
    normed = ("k-bias-missing-seen",)
    yield Mutation("no bias of normed keys", normed, plant, lambda net: qkv_bias(net) and not no_qk_norm(net))
    for path, word, truth in (
        ("attn.proj", "output", "out-bias-missing"),
        ("mlp.fc1", "fc1", "mlp-up-bias-missing"),
        ("mlp.fc2", "fc2", "mlp-down-bias-missing"),
    ):
        fits = plain_mlp if path == "mlp.fc1" else lambda net: True
        yield Mutation(f"no {word} bias", (truth,), each(path, linear(bias=torch.zeros_like)), fits)
    one = each("mlp.fc1", linear(bias=torch.zeros_like), [1])
    yield Mutation("no fc1 bias in block 1", ("mlp-up-bias-missing",), one, plain_mlp)
    scales: tuple[tuple[str, str, Callable[[float, int, int], float]], ...] = (
        ("of the whole width", "scale-width", lambda s, e, a: a**-0.5),
        ("1/e", "scale-squared", lambda s, e, a: s * s),
        ("none", "scale-missing", lambda s, e, a: 1.0),
        ("too large by sqrt 2", "scale-sqrt2", lambda s, e, a: (e / 2) ** -0.5),
        ("too large by 1 %", "scale-percent", lambda s, e, a: 1.01 * s),
    )
    for name, truth, scale in scales:
        yield Mutation(f"scale {name}", (truth,), each("attn", attention(scale=scale)))
    ahead = attention(logits=lambda x: x + torch.full_like(x[0, 0], float("-inf")).triu(1))
    yield Mutation("causal", ("causal",), each("attn", ahead))
    yield Mutation("proj transposed", ("out-transposed",), each("attn.proj", linear(lambda w: w.T)))
    yield Mutation("no qk norm", ("qk-norm-missing",), each("attn", attention(norms=False)), qk_norm)
    raw = both(block(_raw_kv), each("attn", _given))
    yield Mutation("keys and values of the raw stream", ("kv-raw",), raw, qkv_bias)
    acts: dict[str, tuple[str, Callable[[Tensor], Tensor]]] = {
        "tanh GELU": ("activation-gelu-tanh", partial(nn.functional.gelu, approximate="tanh")),
        "QuickGELU": ("activation-quick-gelu", lambda x: x / (1 + (-1.702 * x).exp())),
        "ReLU": ("activation-relu", torch.relu),
        "SiLU": ("activation-silu", nn.functional.silu),
        "exact GELU": ("activation-gelu", nn.functional.gelu),
    }
    for name, (truth, act) in acts.items():
        right = gated if truth == "activation-gelu" else plain_mlp
        yield Mutation(name, (truth,), setting("mlp", "act", module_of(act)), right)
    tanh = setting("mlp", "act", module_of(acts["tanh GELU"][1]), [2])
    yield Mutation("tanh GELU in block 2", ("activation-gelu-tanh",), tanh, plain_mlp)
    halves = rows(lambda w: torch.cat(w.chunk(2)[::-1]))
    yield Mutation("gate and value exchanged", ("gate-up-swapped",), each("mlp.fc1", halves), gated)
    for value, word in ((1e-5, "1e-5"), (1e-12, "1e-12")):
        inner = both(eps("norm1", value), eps("norm2", value))
        yield Mutation(f"eps {word} in blocks", (f"eps-blocks-{word}",), inner)
        yield Mutation(f"eps {word} of norm1", (f"eps-norm1-{word}",), eps("norm1", value))
        yield Mutation(f"eps {word} at the end", (f"eps-final-{word}",), partial(final_eps, value=value))
        every = both(inner, partial(final_eps, value=value))
        yield Mutation(f"eps {word} everywhere", (f"eps-all-{word}",), every)
    yield Mutation("norm1 and norm2 exchanged", ("norm1-norm2-swapped",), block(_swap_norms))
    yield Mutation("post-norm", ("placement-post",), block(_post))
    yield Mutation("res-post-norm", ("placement-res-post",), block(_res_post))
    yield Mutation("parallel branches", ("parallel",), block(_parallel))
    one_ = each("ls1", lambda self, x: x)
    two_ = each("ls2", lambda self, x: x)
    yield Mutation("no LayerScale", ("layer-scale-missing",), both(one_, two_), layer_scale)
    yield Mutation("no LayerScale after attention", ("ls1-missing",), one_, layer_scale)
    twice = both(each("ls1", _squared), each("ls2", _squared))
    yield Mutation("LayerScale twice", ("layer-scale-twice",), twice, layer_scale)
    yield Mutation("LayerScales exchanged", ("layer-scale-swapped",), block(_swap_scales), layer_scale)
    yield Mutation("blocks 1, 2 exchanged", ("swapped-with-next",), exchange(1, 2))
    for short, dtype in (("fp16", torch.float16), ("bf16", torch.bfloat16)):
        yield Mutation(f"weights in {short}", (f"weights-{short}",), _round(dtype))
    yield Mutation("matrices in bf16", ("matrices-bf16",), _round(torch.bfloat16, nn.Linear, nn.Conv2d))
    yield from _backward(acts["tanh GELU"][1])
    yield from _random()


def _backward(tanh: Callable[[Tensor], Tensor]) -> Iterator[Mutation]:
    stop = attention(parts=lambda q, k, v: (q, k.detach(), v))
    yield Mutation("keys detached", ("backward-k-detached", "backward-k-norm-detached"), each("attn", stop))
    more = attention(parts=lambda q, k, v: (1.1 * q - 0.1 * q.detach(), k, v))
    yield Mutation("query gradient times 1.1", ("backward-q-scaled",), each("attn", more), no_qk_norm)
    stop = attention(softmax=lambda x: x.softmax(-1).detach())
    yield Mutation("probabilities detached", ("backward-softmax-detached",), each("attn", stop))
    frozen = linear(bias=torch.Tensor.detach)
    yield Mutation("fc2 bias frozen", ("backward-mlp-down-bias-missing",), each("mlp.fc2", frozen))
    plant = both(each("mlp.fc1", frozen), each("mlp.fc2", frozen))
    yield Mutation("MLP biases are buffers", ("backward-mlp-biases-missing",), plant, plain_mlp)
    act = setting("mlp", "act", fake_derivative(nn.functional.gelu, tanh))
    yield Mutation("derivative of tanh GELU", ("backward-activation-gelu-tanh",), act, plain_mlp)
    yield Mutation(
        "LayerScale frozen",
        ("backward-layer-scale-frozen",),
        both(each("ls1", _frozen), each("ls2", _frozen)),
        layer_scale,
    )


def _random() -> Iterator[Mutation]:
    def dropping(p: float) -> Callable[[Any, Tensor], Tensor]:
        return lambda _, x: nn.functional.dropout(x, p, True)

    def paths(_: Any, x: Tensor) -> Tensor:
        return x * torch.bernoulli(torch.full((len(x), 1, 1), 0.7, dtype=x.dtype)) / 0.7

    drop = dropping(0.1)
    lively = attention(softmax=lambda x: nn.functional.dropout(x.softmax(-1), 0.1, True))
    sites: dict[str, tuple[str, Callable[[Any], None]]] = {
        "dropout after proj": ("dropout-projection-alive", each("attn.proj_drop", drop)),
        "dropout in the MLP": ("dropout-mlp-hidden-alive", each("mlp.drop1", drop)),
        "dropout after the MLP": ("dropout-mlp-alive", each("mlp.drop2", drop)),
        "attention dropout": ("dropout-attention-alive", each("attn", lively)),
        "dropout after the embedding": ("dropout-embed-alive", lambda net: override(net.pos_drop, forward=drop)),
        "paths dropped": (
            "drop-path-alive",
            both(each("drop_path1", paths), each("drop_path2", paths)),
        ),
        "paths of the MLP dropped": ("drop-path-alive", each("drop_path2", paths)),
    }
    for name, (truth, plant) in sites.items():
        yield Mutation(name, (truth,), plant, random=True)


def final_eps(net: Any, value: float) -> None:
    """Set the eps of the last norm."""
    for norm in (net.norm, net.fc_norm):
        if isinstance(norm, nn.LayerNorm):
            norm.eps = value


def module_of(act: Callable[[Tensor], Tensor]) -> nn.Module:
    """Return an activation as a module."""

    class Act(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return act(x)

    return Act()


def qkv_bias(net: Any) -> bool:
    """Whether q, k and v have biases."""
    return net.blocks[0].attn.qkv.bias is not None


def qk_norm(net: Any) -> bool:
    """Whether queries and keys are normalised."""
    return not isinstance(net.blocks[0].attn.q_norm, nn.Identity)


def no_qk_norm(net: Any) -> bool:
    """Whether they are not."""
    return not qk_norm(net)


def gated(net: Any) -> bool:
    """Whether the MLP is gated."""
    return net.blocks[0].mlp.fc2.in_features != net.blocks[0].mlp.fc1.out_features


def plain_mlp(net: Any) -> bool:
    """Whether it is not."""
    return not gated(net)


def layer_scale(net: Any) -> bool:
    """Whether there is LayerScale."""
    return hasattr(net.blocks[0].ls1, "gamma")
