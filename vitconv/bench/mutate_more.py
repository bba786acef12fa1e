"""Further faults of every kind, most of them the brothers of those in `mutate` and `mutate_block`, as tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from vitconv.bench.mutate import Mutation, colour, linear, override
from vitconv.bench.mutate_block import (
    attention,
    both,
    each,
    eps,
    exchange,
    fake_derivative,
    final_eps,
    gated,
    layer_scale,
    module_of,
    no_qk_norm,
    plain_mlp,
    qk_norm,
    qkv_bias,
    setting,
)

_EPS = ("1e-12", "1e-8", "1e-7", "1e-5", "1.6e-5", "1e-3")
_MEANS = {
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "clip": ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)),
    "half": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
}
_ACTS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": lambda x: 0.5 * x * (1 + torch.erf(x * 0.5**0.5)),
    "quick-gelu": lambda x: x / (1 + (-1.702 * x).exp()),
    "relu": lambda x: x.clamp_min(0),
    "silu": lambda x: x / (1 + (-x).exp()),
    "squared-relu": lambda x: x.clamp_min(0).square(),
    "leaky-relu": lambda x: torch.where(x > 0, x, 0.01 * x),
}


def every_kind() -> Iterator[Mutation]:
    """Yield them."""
    yield from _norms()
    yield from _inputs()
    yield from _attentions()
    yield from _mlps()
    yield from _blocks()
    yield from _stem()
    yield from _ends()
    yield from _backward()


def norms(net: Any) -> list[Any]:
    """Return every norm over the width: those in the blocks, and those outside."""
    inside = [b.get_submodule(n) for b in net.blocks for n in ("norm1", "norm2")]
    return [m for m in (*inside, net.norm, net.fc_norm, net.norm_pre) if not isinstance(m, nn.Identity)]


def _norms() -> Iterator[Mutation]:
    for word in _EPS:
        value = float(word)
        both_norms = both(eps("norm1", value), eps("norm2", value))
        if word not in ("1e-12", "1e-5"):
            yield Mutation(f"eps {word} in blocks", (f"eps-blocks-{word}",), both_norms)
            yield Mutation(f"eps {word} of norm1", (f"eps-norm1-{word}",), eps("norm1", value))
            yield Mutation(f"eps {word} at the end", (f"eps-final-{word}",), partial(final_eps, value=value))
            yield Mutation(
                f"eps {word} everywhere", (f"eps-all-{word}",), both(both_norms, partial(final_eps, value=value))
            )
        yield Mutation(f"eps {word} of norm2", (f"eps-norm2-{word}",), eps("norm2", value))
        qk = both(eps("attn.q_norm", value), eps("attn.k_norm", value))
        yield Mutation(f"eps {word} of q and k", (f"eps-qk-{word}",), qk, qk_norm)
    for name, truth, change in (
        ("norms without mean", "norm-kind-rmsnorm", _no_mean),
        ("norms with n - 1", "norm-unbiased", _unbiased),
        ("gain 1 + weight", "norm-gain-offset", _offset),
    ):
        yield Mutation(name, (truth,), partial(_all_norms, change=change), _layernorm)
    quiet = both(each("norm1", _shiftless), each("norm2", _shiftless))
    yield Mutation("no shift in the blocks' norms", ("block-norm-shift-missing",), quiet, _layernorm)
    skip = lambda _, x: x  # noqa: E731
    yield Mutation("norm1 skipped", ("attention-branch-norm-missing",), each("norm1", skip))
    yield Mutation("norm2 skipped", ("mlp-branch-norm-missing",), each("norm2", skip))


def _all_norms(net: Any, change: Callable[[Any, Tensor], Tensor]) -> None:
    for norm in norms(net):
        override(norm, forward=change)


def _no_mean(self: Any, x: Tensor) -> Tensor:
    return x * (x.pow(2).mean(-1, keepdim=True) + self.eps).rsqrt() * self.weight + self.bias


def _unbiased(self: Any, x: Tensor) -> Tensor:
    x = x - x.mean(-1, keepdim=True)
    return x * (x.pow(2).sum(-1, keepdim=True) / (x.shape[-1] - 1) + self.eps).rsqrt() * self.weight + self.bias


def _offset(self: Any, x: Tensor) -> Tensor:
    return nn.functional.layer_norm(x, self.normalized_shape, self.weight + 1, self.bias, self.eps)


def _shiftless(self: Any, x: Tensor) -> Tensor:
    return nn.functional.layer_norm(x, self.normalized_shape, self.weight, None, self.eps)


def _inputs() -> Iterator[Mutation]:
    def planted(change: Callable[[Tensor], Tensor]) -> Callable[[Any], None]:
        def plant(net: Any) -> None:
            whole = type(net).forward
            override(net, forward=lambda self, x: whole(self, change(x)))

        return plant

    def swapped(given: str, used: str) -> Callable[[Tensor], Tensor]:
        def change(x: Tensor) -> Tensor:
            (m, s), (n, t) = (tuple(x.new_tensor(v)[:, None, None] for v in _MEANS[k]) for k in (given, used))
            return (x * s + m - n) / t

        return change

    def raw(given: str) -> Callable[[Tensor], Tensor]:
        m, s = _MEANS[given]
        return lambda x: x * x.new_tensor(s)[:, None, None] + x.new_tensor(m)[:, None, None]

    def again(used: str) -> Callable[[Tensor], Tensor]:
        m, s = _MEANS[used]
        return lambda x: (x - x.new_tensor(m)[:, None, None]) / x.new_tensor(s)[:, None, None]

    for given in _MEANS:
        yield Mutation(f"input not normalised, {given}", (f"input-none-for-{given}",), planted(raw(given)), colour)
        for used in _MEANS:
            if given != used and (given, used) != ("imagenet", "half"):
                change = planted(swapped(given, used))
                yield Mutation(f"input {used} for {given}", (f"input-{used}-for-{given}",), change, colour)
    for used in ("imagenet", "clip"):
        yield Mutation(f"input {used} again", (f"input-{used}-again",), planted(again(used)), colour)
    yield Mutation("input a 255th", ("input-by-255",), planted(lambda x: x / 255.0))
    # Images rounded to half precision are not here: those of the probe are exact in it.
    yield Mutation("images transposed", ("input-transposed",), planted(lambda x: x.mT))


def _attentions() -> Iterator[Mutation]:
    def regrouped(change: Callable[..., Tensor], *, bias: bool = True) -> Callable[[Any], None]:
        def plant(net: Any) -> None:
            for b in net.blocks:
                turn = partial(change, h=b.attn.num_heads)
                override(b.attn.qkv, forward=linear(turn, turn if bias else None))

        return plant

    def heads_first(w: Tensor, h: int) -> Tensor:
        return torch.cat([p.reshape(h, -1, *w.shape[1:]).transpose(0, 1).flatten(0, 1) for p in w.chunk(3)])

    def fused(w: Tensor, h: int) -> Tensor:
        return torch.stack([p.reshape(h, -1, *w.shape[1:]) for p in w.chunk(3)], 1).flatten(0, 2)

    def turned(w: Tensor) -> Tensor:
        return torch.cat([p.T for p in w.chunk(3)])

    def exchanged(b: Tensor) -> Tensor:
        q, k, v = b.chunk(3)
        return torch.cat([q, v, k])

    yield Mutation("head axis first", ("heads-first",), regrouped(heads_first))
    yield Mutation("weight fused, bias not", ("heads-fused-weight",), regrouped(fused, bias=False), qkv_bias)
    yield Mutation("qkv transposed", ("qkv-transposed",), each("attn.qkv", linear(turned)))
    yield Mutation("k bias is v bias", ("k-bias-is-v-bias",), each("attn.qkv", linear(bias=exchanged)), qkv_bias)
    less = attention(scale=lambda s, e, a: (2 * e) ** -0.5)
    yield Mutation("scale too small by sqrt 2", ("scale-half-sqrt2",), each("attn", less))
    other = attention(softmax=lambda x: x.softmax(-2))
    yield Mutation("softmax over queries", ("softmax-over-queries",), each("attn", other))

    def swap(net: Any) -> None:
        for b in net.blocks:
            q, k = b.attn.q_norm, b.attn.k_norm
            q.twin, k.twin = (k,), (q,)
            for norm in (q, k):
                whole = type(norm).forward
                override(norm, forward=lambda self, x, whole=whole: whole(self.twin[0], x))

    yield Mutation("q and k norms exchanged", ("qk-norm-swapped",), swap, qk_norm)


def _mlps() -> Iterator[Mutation]:
    for name in ("squared-relu", "leaky-relu"):
        right = setting("mlp", "act", module_of(_ACTS[name]))
        yield Mutation(f"{name} for the activation", (f"activation-{name}",), right)
    for name, act in _ACTS.items():
        if name != "gelu":
            change = setting("mlp", "act", fake_derivative(nn.functional.gelu, act))
            yield Mutation(f"derivative of {name}", (f"backward-activation-{name}",), change, plain_mlp)

    def ungated(self: Any, x: Tensor) -> Tensor:
        # The first half of the rows is the gate.
        return self.fc2(self.norm(self.act(self.fc1(x).chunk(2, -1)[1])))

    def alternating(w: Tensor) -> Tensor:
        return torch.cat([w[0::2], w[1::2]])

    def halves(w: Tensor) -> Tensor:
        return torch.stack(w.chunk(2), 1).flatten(0, 1)

    def half(b: Tensor) -> Tensor:
        return torch.cat([torch.zeros_like(b[: len(b) // 2]), b[len(b) // 2 :]])

    yield Mutation("no gate bias", ("mlp-gate-bias-missing",), each("mlp.fc1", linear(bias=half)), gated)
    yield Mutation("no gate", ("gate-missing",), each("mlp", ungated), gated)
    wrong = each("mlp.fc1", linear(alternating, alternating))
    yield Mutation("gate rows alternating", ("gate-up-alternating",), wrong, gated)
    wrong = each("mlp.fc1", linear(halves, halves))
    yield Mutation("gate rows in halves", ("gate-up-halves",), wrong, gated)


def _blocks() -> Iterator[Mutation]:
    def none(_: Any, x: Tensor, **__: Any) -> Tensor:
        return x * 0

    yield Mutation("no attention", ("attn-branch-missing",), each("attn", none))
    yield Mutation("no MLP", ("mlp-branch-missing",), each("mlp", none))
    yield Mutation("block 1 left out", ("block-missing",), each("", lambda _, x, **__: x, [1]))
    yield Mutation("no LayerScale after the MLP", ("ls2-missing",), each("ls2", lambda _, x: x), layer_scale)

    def backwards(net: Any) -> None:
        last = len(net.blocks) - 1
        for i in range(len(net.blocks) // 2):
            exchange(i, last - i)(net)

    yield Mutation("blocks in reverse", ("blocks-reversed",), backwards)


def _stem() -> Iterator[Mutation]:
    def cut(net: Any) -> None:
        def forward(self: Any, x: Tensor) -> Tensor:
            return nn.functional.conv2d(x, self.weight, self.bias, self.stride).mT

        override(net.patch_embed.proj, forward=forward)

    def kernel(w: Tensor) -> Tensor:
        # Stored (c q p), read as (q p c).
        return w.permute(0, 1, 3, 2).reshape(len(w), *w.shape[2:], -1).permute(0, 3, 2, 1)

    def patch(net: Any) -> None:
        def forward(self: Any, x: Tensor) -> Tensor:
            return nn.functional.conv2d(x, kernel(self.weight), self.bias, self.stride)

        override(net.patch_embed.proj, forward=forward)

    def rows(change: Callable[[Tensor], Tensor]) -> Callable[[Any], None]:
        def plant(net: Any) -> None:
            ahead = 0 if net.no_embed_class else net.num_prefix_tokens
            whole, side = type(net)._pos_embed, net.patch_embed.grid_size  # noqa: SLF001

            def embed(self: Any, x: Tensor) -> Tensor:
                table = self.pos_embed
                new = change(table[:, ahead:].unflatten(1, side)).flatten(1, 2) - table[:, ahead:]
                return whole(self, x + new)

            override(net, _pos_embed=embed)

        return plant

    yield Mutation("patches by column", ("patches-by-column",), cut)
    yield Mutation("(c q p) read as (q p c)", ("patch-cqp-as-qpc",), patch, colour)
    yield Mutation("grid mirrored", ("pos-mirrored",), rows(lambda g: g.flip(2)))
    yield Mutation("grid one patch on", ("pos-shifted",), rows(partial(_rolled, by=1)))
    yield Mutation("grid one patch back", ("pos-shifted-back",), rows(partial(_rolled, by=-1)))


def _ends() -> Iterator[Mutation]:
    def pooled(change: Callable[[Tensor], Tensor]) -> Callable[[Any], None]:
        return lambda net: override(net, pool=lambda _, x: change(x))

    def token(net: Any) -> bool:
        return net.global_pool == "token"

    def average(net: Any) -> bool:
        return net.global_pool == "avg"

    yield Mutation("matrices in fp16", ("matrices-fp16",), _matrices_in_half)

    def reversed_registers(net: Any) -> None:
        def embed(self: Any, x: Tensor) -> Tensor:
            ahead = (self.cls_token, self.reg_token.flip(1))
            return torch.cat([*(t.expand(len(x), -1, -1) for t in ahead), x + self.pos_embed], 1)

        override(net, _pos_embed=embed)

    yield Mutation("registers reversed", ("registers-reversed",), reversed_registers, lambda n: n.reg_token is not None)
    yield Mutation("second token pooled", ("pooling-second-token",), pooled(lambda x: x[:, 1]), token)

    def fewer(net: Any) -> None:
        override(net, pool=lambda self, x: x[:, self.num_prefix_tokens + 1 :].mean(1))

    yield Mutation("first patch left out", ("pooling-first-patch-left-out",), fewer, average)


def _matrices_in_half(net: Any) -> None:
    with torch.no_grad():
        for name, p in net.named_parameters():
            if name.endswith(".weight") and p.ndim > 1:
                p.copy_(p.half())


def _rolled(grid: Tensor, by: int) -> Tensor:
    return grid.flatten(1, 2).roll(by, 1).unflatten(1, grid.shape[1:3])


def _backward() -> Iterator[Mutation]:
    def parts(change: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, ...]]) -> Callable[[Any], None]:
        return each("attn", attention(parts=change))

    yield Mutation(
        "queries detached",
        ("backward-q-detached", "backward-q-norm-detached"),
        parts(lambda q, k, v: (q.detach(), k, v)),
    )
    yield Mutation("values detached", ("backward-v-detached",), parts(lambda q, k, v: (q, k, v.detach())))
    more = parts(lambda q, k, v: (q, 1.1 * k - 0.1 * k.detach(), v))
    yield Mutation("key gradient times 1.1", ("backward-k-scaled",), more, no_qk_norm)

    def lean(x: Tensor) -> Tensor:
        top = x.exp()
        return top / top.sum(-1, keepdim=True).detach()

    yield Mutation("softmax without row sum", ("backward-softmax-row-sum",), each("attn", attention(softmax=lean)))

    def bias(part: int) -> Callable[[Tensor], Tensor]:
        def change(b: Tensor) -> Tensor:
            pieces = list(b.chunk(3))
            pieces[part] = pieces[part].detach()
            return torch.cat(pieces)

        return change

    for part, word in ((0, "q"), (2, "v")):
        frozen = each("attn.qkv", linear(bias=bias(part)))
        yield Mutation(f"{word} bias frozen", (f"backward-{word}-bias-missing",), frozen, qkv_bias)
    frozen = each("attn.proj", linear(bias=Tensor.detach))
    yield Mutation("proj bias frozen", ("backward-out-bias-missing",), frozen)
    frozen = each("mlp.fc1", linear(bias=Tensor.detach))
    yield Mutation("fc1 bias frozen", ("backward-mlp-up-bias-missing",), frozen, plain_mlp)

    def still(self: Any, x: Tensor) -> Tensor:
        return nn.functional.layer_norm(x, self.normalized_shape, self.weight.detach(), self.bias.detach(), self.eps)

    quiet = both(each("norm1", still), each("norm2", still))
    yield Mutation("norms frozen", ("backward-norm-weights",), quiet, _layernorm)
    yield Mutation("statistics detached", ("backward-norm-statistics",), partial(_all_norms, change=_flat), _layernorm)

    def cut(net: Any) -> None:
        for b in net.blocks:
            b.register_forward_pre_hook(lambda _, args: (args[0].detach(), *args[1:]))

    yield Mutation("blocks detached", ("backward-block-detached",), cut)
    row = lambda net: override(net, _pos_embed=_still_row)  # noqa: E731
    yield Mutation("class row frozen", ("backward-cls-row-detached",), row, lambda n: not n.no_embed_class)


def _still_row(self: Any, x: Tensor) -> Tensor:
    token = (self.cls_token + self.pos_embed[:, :1]).detach().expand(len(x), -1, -1)
    return torch.cat([token, x + self.pos_embed[:, 1:]], 1)


def _flat(self: Any, x: Tensor) -> Tensor:
    mean, var = x.mean(-1, keepdim=True).detach(), x.var(-1, correction=0, keepdim=True).detach()
    return (x - mean) / (var + self.eps).sqrt() * self.weight + self.bias


def _layernorm(net: Any) -> bool:
    return isinstance(net.blocks[0].norm1, nn.LayerNorm)
