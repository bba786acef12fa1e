"""Faults of networks that are not timm's plain ViT: distilled with norms everywhere, res-post-norm, DeepNorm."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from vitconv.bench.mutate import Mutation, override
from vitconv.bench.mutate_block import block, both, each, eps

EPS = ("1e-12", "1e-8", "1e-7", "1e-5", "1.6e-5", "1e-3")


def skipped(path: str) -> Callable[[Any], None]:
    """Skip a module."""
    return lambda net: override(net.get_submodule(path), forward=lambda self, x: x)


def distilled() -> Iterator[Mutation]:
    """Yield the faults of timm's distilled ViT, with a norm ahead of the blocks and inside of both branches."""
    for name, truth, change in (
        ("class and distillation token exchanged", "class-distillation-swapped", (True, True, 1.0)),
        ("their rows exchanged", "class-distillation-rows-swapped", (False, True, 1.0)),
        ("distillation token zero", "distillation-token-missing", (False, False, 0.0)),
    ):
        yield Mutation(name, (truth,), partial(_tokens, change=change))
    yield Mutation("one head answers", ("distillation-head-missing",), _heads(lambda a, b: a))
    yield Mutation("logits added", ("distillation-head-summed",), _heads(lambda a, b: a + b))
    yield Mutation("norm_pre skipped", ("embed-norm-missing",), skipped("norm_pre"))
    skip = lambda _, x: x  # noqa: E731
    yield Mutation("attention's norm skipped", ("attention-norm-missing",), each("attn.norm", skip))
    yield Mutation("MLP's norm skipped", ("mlp-norm-missing",), each("mlp.norm", skip))
    for word in EPS:
        value = float(word)
        yield Mutation(f"eps {word} of norm_pre", (f"eps-embed-{word}",), partial(_set_eps, path="norm_pre", eps=value))
        every = partial(_every_eps, value=value)
        yield Mutation(f"eps {word} everywhere", (f"eps-all-{word}",), every)
        inside = both(eps("norm1", value), eps("norm2", value))
        yield Mutation(f"eps {word} in blocks", (f"eps-blocks-{word}",), inside)


def _tokens(net: Any, change: tuple[bool, bool, float]) -> None:
    tokens, rows, dist = change

    def embed(self: Any, x: Tensor) -> Tensor:
        ahead = [self.cls_token, self.dist_token * dist]
        table = list(self.pos_embed.split([1, 1, x.shape[1]], 1))
        if tokens:
            ahead.reverse()
        if rows:
            table[:2] = table[1::-1]
        return torch.cat([*(t.expand(len(x), -1, -1) for t in ahead), x], 1) + torch.cat(table, 1)

    override(net, _pos_embed=embed)


def _heads(join: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Any], None]:
    def forward_head(self: Any, x: Tensor, pre_logits: bool = False) -> Tensor:
        del pre_logits
        return join(self.head(x[:, 0]), self.head_dist(x[:, 1]))

    return lambda net: override(net, forward_head=forward_head)


def _set_eps(net: Any, path: str, eps: float) -> None:
    net.get_submodule(path).eps = eps


def _every_eps(net: Any, value: float) -> None:
    for module in net.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = value


def res_post() -> Iterator[Mutation]:
    """Yield the faults of timm's res-post-norm blocks with RMS norms."""

    def pre(b: Any, x: Tensor) -> Tensor:
        x = x + b.attn(b.norm1(x))
        return x + b.mlp(b.norm2(x))

    def post(b: Any, x: Tensor) -> Tensor:
        x = b.norm1(x + b.attn(x))
        return b.norm2(x + b.mlp(x))

    yield Mutation("norms ahead of the branches", ("placement-pre",), block(pre))
    yield Mutation("norms behind the sums", ("placement-post",), block(post))

    def centred(self: Any, x: Tensor) -> Tensor:
        return nn.functional.layer_norm(x, x.shape[-1:], self.weight, None, self.eps)

    yield Mutation("LayerNorm for RMS norm", ("norm-kind-layernorm",), partial(_norms, forward=centred))
    for word in EPS:
        inside = both(eps("norm1", float(word)), eps("norm2", float(word)))
        yield Mutation(f"eps {word} in blocks", (f"eps-blocks-{word}",), inside)
    yield Mutation("norms exchanged", ("norm1-norm2-swapped",), block(_exchanged))
    yield Mutation("final norm skipped", ("final-norm-missing",), skipped("norm"))


def _exchanged(b: Any, x: Tensor) -> Tensor:
    x = x + b.norm2(b.attn(x))
    return x + b.norm1(b.mlp(x))


def _norms(net: Any, forward: Callable[[Any, Tensor], Tensor]) -> None:
    for module in list(net.modules()):
        if "Norm" in type(module).__name__:
            override(module, forward=forward)


def deepnorm() -> Iterator[Mutation]:
    """Yield the faults of DeepNorm, in our twin of xformers' factory, four layers deep."""
    depth = 4
    for name, truths, n in (
        ("alpha 1", ("alpha-one", "placement-post"), None),
        ("alpha of one layer", ("alpha-one-layer",), 1.0),
        ("alpha of half the depth", ("alpha-half-depth",), depth / 2),
        ("alpha of twice the depth", ("alpha-twice-depth",), 2.0 * depth),
    ):
        alpha = 1.0 if n is None else (2 * n) ** 0.25
        yield Mutation(name, truths, partial(_alpha, value=alpha))
    yield Mutation("norms ahead of the branches", ("placement-pre",), _pre)
    for word in (*EPS, "1e-6"):
        # The factory's own is 1e-5.
        if word != "1e-5":
            yield Mutation(f"eps {word} in blocks", (f"eps-blocks-{word}",), partial(_deep_eps, value=float(word)))


def _wraps(net: Any) -> Iterator[Any]:
    for module in net.modules():
        if type(module).__name__ == "PostNorm":
            yield module


def _alpha(net: Any, value: float) -> None:
    for wrap in _wraps(net):
        wrap.sublayer.scale = value


def _deep_eps(net: Any, value: float) -> None:
    for wrap in _wraps(net):
        wrap.norm.eps = value


def _pre(net: Any) -> None:
    def forward(self: Any, first: Tensor, *_: Tensor) -> Tensor:
        y = self.norm(first)
        branch = self.sublayer.layer
        return first + (branch(y, y, y) if "Multi" in type(branch).__name__ else branch(y))

    for wrap in list(_wraps(net)):
        override(wrap, forward=forward)
