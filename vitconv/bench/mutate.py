"""Spoil a timm network on purpose, by changing what its modules compute: faults whose names the explainer must find.

Nothing here uses the fault catalogue: a mutation is a change of timm's own classes and says, by name, what the
catalogue should call it. A module is spoiled by giving it a class of its own, so that copies stay spoiled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Mutation:
    """One way to spoil a timm network.

    Attributes:
        name: what it is called in the matrix.
        truth: the names under which the explainer may find it; "" in it: it changes nothing.
        plant: spoils a network in place.
        fits: whether a network can be spoiled so.
        random: two runs differ.
        watched: it is found by watching the run, which no regression does.
        exact: it is found in float64 alone, for its number is solved for.
    """

    name: str
    truth: tuple[str, ...]
    plant: Callable[[Any], None]
    fits: Callable[[Any], bool] = lambda net: True
    random: bool = False
    watched: bool = False
    exact: bool = False


def override(module: Any, **methods: Any) -> None:
    """Give one module a class of its own, derived from its class, with these methods and properties."""
    module.__class__ = type(type(module).__name__, (type(module),), methods)


def linear(
    weight: Callable[[Tensor], Tensor] | None = None, bias: Callable[[Tensor], Tensor] | None = None
) -> Callable[[Any, Tensor], Tensor]:
    """Return the forward of a Linear whose weight and bias are changed first."""

    def forward(self: Any, x: Tensor) -> Tensor:
        w = self.weight if weight is None else weight(self.weight)
        b = self.bias if bias is None or self.bias is None else bias(self.bias)
        return nn.functional.linear(x, w, b)

    return forward


def rows(change: Callable[[Tensor], Tensor]) -> Callable[[Any, Tensor], Tensor]:
    """Return the forward of a Linear whose rows, of weight and bias alike, are changed first."""
    return linear(change, change)


def _patch(change: Callable[[Tensor], Tensor], bias: float = 1.0) -> Callable[[Any], None]:
    def plant(net: Any) -> None:
        def forward(self: Any, x: Tensor) -> Tensor:
            return nn.functional.conv2d(x, change(self.weight), self.bias * bias, self.stride)

        override(net.patch_embed.proj, forward=forward)

    return plant


def _images(change: Callable[[Tensor], Tensor]) -> Callable[[Any], None]:
    def plant(net: Any) -> None:
        whole = type(net).forward

        def forward(self: Any, x: Tensor) -> Tensor:
            return whole(self, change(x))

        override(net, forward=forward)

    return plant


def _positions(change: Callable[[Tensor, Any], Tensor]) -> Callable[[Any], None]:
    """Change the table [1 t d] that is added, given the network too."""

    def plant(net: Any) -> None:
        def embed(self: Any, x: Tensor) -> Tensor:
            tokens = [t.expand(len(x), -1, -1) for t in (self.cls_token, self.reg_token) if t is not None]
            table = change(self.pos_embed, self)
            if self.no_embed_class:
                return torch.cat([*tokens, x + table], 1)
            return torch.cat([*tokens, x], 1) + table

        override(net, _pos_embed=embed)

    return plant


def _grid(change: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Any], Tensor]:
    def of(table: Tensor, net: Any) -> Tensor:
        ahead = 0 if net.no_embed_class else net.num_prefix_tokens
        grid = table[:, ahead:].unflatten(1, net.patch_embed.grid_size)
        return torch.cat([table[:, :ahead], change(grid).flatten(1, 2)], 1)

    return of


def _class_row(factor: float) -> Callable[[Tensor, Any], Tensor]:
    return lambda table, net: torch.cat([table[:, :1] * factor, table[:, 1:]], 1)


def _tokens(cls: float = 1.0, reg: float = 1.0, detach: bool = False) -> Callable[[Any], None]:
    def plant(net: Any) -> None:
        def embed(self: Any, x: Tensor) -> Tensor:
            token = self.cls_token.detach() if detach else self.cls_token * cls
            tokens = [token] if self.reg_token is None else [token, self.reg_token * reg]
            tokens = [t.expand(len(x), -1, -1) for t in tokens]
            if self.no_embed_class:
                return torch.cat([*tokens, x + self.pos_embed], 1)
            return torch.cat([*tokens, x], 1) + self.pos_embed

        override(net, _pos_embed=embed)

    return plant


def _class_last(moved: bool) -> Callable[[Any], None]:
    def plant(net: Any) -> None:
        def embed(self: Any, x: Tensor) -> Tensor:
            table = torch.cat([self.pos_embed[:, 1:], self.pos_embed[:, :1]], 1) if moved else self.pos_embed
            return torch.cat([x, self.cls_token.expand(len(x), -1, -1)], 1) + table

        def pool(_: Any, x: Tensor) -> Tensor:
            return x[:, -1]

        override(net, _pos_embed=embed, pool=pool)

    return plant


def _no_registers(net: Any) -> None:
    def embed(self: Any, x: Tensor) -> Tensor:
        return torch.cat([self.cls_token.expand(len(x), -1, -1), x + self.pos_embed], 1)

    net.num_prefix_tokens = 1
    override(net, _pos_embed=embed)


def _pool(change: Callable[[Any, Tensor], Tensor]) -> Callable[[Any], None]:
    def plant(net: Any) -> None:
        def pool(self: Any, x: Tensor) -> Tensor:
            return change(self, x)

        override(net, pool=pool)

    return plant


def _skip(name: str) -> Callable[[Any], None]:
    return lambda net: override(getattr(net, name), forward=lambda self, x: x)


def _norm_first(net: Any) -> None:
    def pool(self: Any, x: Tensor) -> Tensor:
        return self.fc_norm(x)[:, self.num_prefix_tokens :].mean(1)

    def head(self: Any, x: Tensor, pre_logits: bool = False) -> Tensor:
        x = self.pool(x)
        return x if pre_logits else self.head(x)

    override(net, pool=pool, forward_head=head)


def _unnormalise(mean: tuple[float, ...], std: tuple[float, ...]) -> Callable[[Tensor], Tensor]:
    def change(x: Tensor) -> Tensor:
        return (x - x.new_tensor(mean)[:, None, None]) / x.new_tensor(std)[:, None, None]

    return change


def _input_statistics(x: Tensor) -> Tensor:
    # ImageNet's statistics undone, 0.5 and 0.5 used.
    m, s = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    plain = x * x.new_tensor(s)[:, None, None] + x.new_tensor(m)[:, None, None]
    return (plain - 0.5) / 0.5


def plain(net: Any) -> bool:
    """Whether it is timm's ViT with blocks as most have them: pre-norm, a class token and no other one."""
    return type(net).__name__ == "VisionTransformer" and type(net.blocks[0]).__name__ in ("Block", "LayerScaleBlock")


def classic(net: Any) -> bool:
    """Whether the class token has a row of the position table, and the patches have the others."""
    return not net.no_embed_class and net.reg_token is None and net.cls_token is not None


def embed_and_head() -> Iterator[Mutation]:
    """Yield the mutations of everything outside the blocks."""
    half = (0.5, 0.5, 0.5)
    yield Mutation("patch kernel transposed", ("patch-transposed",), _patch(lambda w: w.transpose(2, 3)))
    yield Mutation("patch kernel turned", ("patch-rotated",), _patch(lambda w: w.flip(2, 3)))
    yield Mutation("kernel in BGR", ("channels-reversed",), _patch(lambda w: w.flip(1)), colour)
    yield Mutation("images in BGR", ("channels-reversed",), _images(lambda x: x.flip(1)), colour)
    flat = _patch(lambda w: w.flatten(1).unflatten(1, (*w.shape[2:], -1)).permute(0, 3, 1, 2))
    yield Mutation("(c p p) read as (p p c)", ("patch-cpq-as-pqc",), flat, colour)
    flat = _patch(lambda w: w.permute(0, 2, 3, 1).reshape(w.shape))
    yield Mutation("(p p c) read as (c p p)", ("patch-pqc-as-cpq",), flat, colour)
    yield Mutation("no patch bias", ("patch-bias-missing",), _patch(lambda w: w, 0.0))
    yield Mutation("input 0.5/0.5 for ImageNet", ("input-half-for-imagenet",), _images(_input_statistics), colour)
    yield Mutation("input normalised again", ("input-half-again",), _images(_unnormalise(half, half)), colour)
    yield Mutation("input not in 0..1", ("input-255",), _images(lambda x: x * 255.0))
    yield Mutation("images mirrored", ("input-mirrored",), _images(lambda x: torch.flip(x, (3,))))
    yield Mutation("table shifted by a row", ("pos-class-row-last",), _positions(lambda t, n: t.roll(1, 1)), classic)
    back = _positions(lambda t, n: torch.cat([t[:, 1:], t[:, :1]], 1))
    yield Mutation("table shifted back", ("pos-class-row-first",), back, classic)
    yield Mutation("grid transposed", ("pos-transposed",), _positions(_grid(lambda g: g.transpose(1, 2))))
    yield Mutation("grid upside down", ("pos-flipped",), _positions(_grid(lambda g: g.flip(1))))
    yield Mutation("positions twice", ("pos-doubled",), _positions(lambda t, n: t + t))
    yield Mutation("no positions", ("pos-missing",), _positions(lambda t, n: t - t))
    yield Mutation("class row not added", ("pos-class-row-missing",), _positions(_class_row(0.0)), classic)
    yield Mutation("class row folded and added", ("pos-class-row-doubled",), _positions(_class_row(2.0)), classic)
    yield Mutation("class token zero", ("class-token-missing",), _tokens(cls=0.0))
    yield Mutation("class token last", ("class-last",), _class_last(True), _by_token)
    yield Mutation("class token last, table not moved", ("class-last-unmoved",), _class_last(False), _by_token)
    yield Mutation("registers not put in", ("registers-missing",), _no_registers, _registers)
    yield Mutation("registers zero", ("registers-zero",), _tokens(reg=0.0), _registers)
    gap = _pool(lambda net, x: x[:, net.num_prefix_tokens :].mean(1))
    yield Mutation("mean of patches", ("pooling-avg",), gap, lambda net: net.global_pool == "token")
    yield Mutation("mean of all tokens", ("pooling-avg-prefix",), _pool(lambda net, x: x.mean(1)))
    yield Mutation("class token pooled", ("pooling-token",), _pool(lambda net, x: x[:, 0]), _average)
    yield Mutation("last token pooled", ("pooling-last-token",), _pool(lambda net, x: x[:, -1]), _by_token)
    kept = _pool(lambda net, x: x[:, 1:].mean(1))
    yield Mutation("registers averaged", ("pooling-registers",), kept, lambda net: _average(net) and _registers(net))
    yield Mutation("fc_norm ahead of the mean", ("norm-before-pooling",), _norm_first, _average)
    yield Mutation("fc_norm skipped", ("pool-norm-missing",), _skip("fc_norm"), _average)
    yield Mutation("final norm skipped", ("final-norm-missing",), _skip("norm"), _by_token)
    no_bias = linear(bias=lambda b: b * 0)
    yield Mutation("no head bias", ("head-bias-missing",), lambda net: override(net.head, forward=no_bias))
    yield Mutation("positions frozen", ("backward-pos-missing",), _positions(lambda t, n: t.detach()))
    twice = _positions(lambda t, n: 2 * t - t.detach())
    yield Mutation("position gradient doubled", ("backward-pos-doubled",), twice)
    yield Mutation("class token frozen", ("backward-cls-detached",), _tokens(detach=True))
    yield Mutation("stem frozen", ("backward-patch-frozen",), _frozen_stem)


def _frozen_stem(net: Any) -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        return nn.functional.conv2d(x, self.weight.detach(), self.bias.detach(), self.stride)

    override(net.patch_embed.proj, forward=forward)


def colour(net: Any) -> bool:
    """Whether images have three channels."""
    return net.patch_embed.proj.in_channels == 3


def _registers(net: Any) -> bool:
    return net.reg_token is not None


def _average(net: Any) -> bool:
    return net.global_pool == "avg"


def _by_token(net: Any) -> bool:
    return net.global_pool == "token" and classic(net)
