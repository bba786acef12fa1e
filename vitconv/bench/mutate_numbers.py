"""Spoil a timm network with a number on purpose: a factor in some place, an eps. See `vitconv.bench.mutate`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from vitconv.bench.mutate import Mutation, override
from vitconv.bench.mutate_block import attention, block, both, each, eps, final_eps
from vitconv.bench.mutate_norms import at


def _times(path: str, factor: Callable[[Any], float]) -> Callable[[Any], None]:
    """Multiply what a part gives: "" is the whole; the factor is one of the network."""

    def plant(net: Any) -> None:
        part = net.get_submodule(path) if path else net
        _multiply(part, factor(net))

    return plant


def _multiply(part: Any, factor: float) -> None:
    whole = type(part).forward
    override(part, forward=lambda self, *args, **more: whole(self, *args, **more) * factor)


def _norms(place: str, factor: Callable[[Any], float]) -> Callable[[Any], None]:
    def plant(net: Any) -> None:
        for norm in at(net, place):
            _multiply(norm, factor(net))

    return plant


def _width(net: Any) -> float:
    return float(net.embed_dim) ** 0.5


def _inverse(net: Any) -> float:
    return float(net.embed_dim) ** -0.5


def _half_attention(b: Any, x: Tensor) -> Tensor:
    x = x + 0.5 * b.ls1(b.attn(b.norm1(x)))
    return x + b.ls2(b.mlp(b.norm2(x)))


def _twice_mlp(b: Any, x: Tensor) -> Tensor:
    x = x + b.ls1(b.attn(b.norm1(x)))
    return x + b.ls2(b.mlp(b.norm2(x))) * 2


def _output(function: Callable[[Tensor], Tensor]) -> Callable[[Any], None]:
    def plant(net: Any) -> None:
        whole = type(net).forward
        override(net, forward=lambda self, x: function(whole(self, x)))

    return plant


def _positions(net: Any) -> None:
    def embed(self: Any, x: Tensor, **_: Any) -> Tensor:
        tokens = [t.expand(len(x), -1, -1) for t in (self.cls_token, self.reg_token) if t is not None]
        if self.no_embed_class:
            return torch.cat([*tokens, x + 0.02 * self.pos_embed], 1)
        return torch.cat([*tokens, x], 1) + 0.02 * self.pos_embed

    override(net, _pos_embed=embed)


def _embedding(net: Any) -> None:
    whole = type(net)._pos_embed  # noqa: SLF001
    override(net, _pos_embed=lambda self, x: whole(self, x) * _width(self))


def _there(place: str) -> Callable[[Any], bool]:
    return lambda net: len(at(net, place)) > 0


def _solved(
    name: str, truth: tuple[str, ...], plant: Callable[[Any], None], fits: Callable[[Any], bool] = lambda net: True
) -> Mutation:
    return Mutation(name, truth, plant, fits, exact=True)


def numbers_ahead() -> Iterator[Mutation]:
    """Yield those of a norm ahead of the blocks."""
    times = ("norm-times-embed", "embed-times")
    yield _solved("norm ahead times the root of the width", times, _norms("embed", _width), _there("embed"))
    yield _solved("eps 3e-4 ahead of the blocks", ("eps-embed-other",), _eps_ahead, _there("embed"))


def _eps_ahead(net: Any) -> None:
    net.norm_pre.eps = 3e-4


def numbers() -> Iterator[Mutation]:
    """Yield factors, eps that no library has, and functions of the output."""
    for place in ("blocks", "norm1", "norm2", "final"):
        root = _norms(place, _width)
        # Of the only norm ahead of the head, it is the features' factor too.
        truth = (f"norm-times-{place}", *(("features-times",) if place == "final" else ()))
        yield _solved(f"norm times the root of the width, {place}", truth, root, _there(place))
    yield _solved("final norm over the root", ("norm-times-final", "features-times"), _norms("final", _inverse))
    yield _solved("every norm times the root", ("norm-times-all",), _norms("all", _width), _there("final"))
    inner = both(eps("norm1", 3e-4), eps("norm2", 3e-4))
    yield _solved("eps 3e-4 in blocks", ("eps-blocks-other",), inner)
    every = both(inner, lambda net: final_eps(net, 3e-4))
    yield _solved("eps 3e-4 everywhere", ("eps-all-other",), every)
    yield _solved("eps 3e-4 in norm2", ("eps-norm2-other",), eps("norm2", 3e-4))
    yield _solved("eps 2e-9 in norm1", ("eps-norm1-other",), eps("norm1", 2e-9))
    yield _solved("eps 4e-3 at the end", ("eps-final-other",), lambda net: final_eps(net, 4e-3))
    yield _solved("scale 0.11", ("scale-times",), each("attn", attention(scale=lambda s, e, a: 0.11)))
    yield _solved("attention times 0.7", ("attn-times", "attn-added-times"), _each_times("attn", 0.7))
    yield _solved("MLP times 0.7", ("mlp-times", "mlp-added-times"), _each_times("mlp", 0.7))
    yield _solved("half of attention added", ("attn-added-times",), block(_half_attention))
    yield _solved("twice the MLP added", ("mlp-added-times",), block(_twice_mlp))
    yield _solved("images over 3.7", ("input-times",), _scaled_images)
    yield _solved("patches times the root of the width", ("patches-times",), _times("patch_embed", _width))
    yield _solved("embedding times the root of the width", ("embed-times",), _embedding)
    yield _solved("positions times 0.02", ("pos-times",), _positions)
    yield _solved("head times 100", ("logits-times",), _times("head", lambda net: 100.0))
    yield _solved("output times 0.7312", ("output-times",), _output(lambda y: 0.7312 * y))
    yield Mutation("output is probabilities", ("output-softmax",), _output(lambda y: y.exp() / y.exp().sum(-1, True)))
    yield Mutation("output is log probabilities", ("output-log-softmax",), _output(lambda y: y - y.logsumexp(-1, True)))
    yield Mutation("output is sigmoids", ("output-sigmoid",), _output(lambda y: 1 / (1 + (-y).exp())))
    yield Mutation("output of length 1", ("output-normalize",), _output(lambda y: y / y.norm(dim=-1, keepdim=True)))


def _each_times(path: str, factor: float) -> Callable[[Any], None]:
    def plant(net: Any) -> None:
        for b in net.blocks:
            _multiply(b.get_submodule(path), factor)

    return plant


def _scaled_images(net: nn.Module) -> None:
    whole: Any = type(net).forward
    override(net, forward=lambda self, x: whole(self, x / 3.7))
