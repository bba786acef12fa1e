"""Spoil the norms of a timm network on purpose, place by place: what they divide by, and their backward pass.

The backward pass is written out in an autograd function, as a kernel of one's own has it. See `vitconv.bench.mutate`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from vitconv.bench.mutate import Mutation, override

_INSIDE = {"blocks": ("norm1", "norm2"), "norm1": ("norm1",), "norm2": ("norm2",)}


def at(net: Any, place: str) -> list[Any]:
    """Return the norms of a place: all, blocks, norm1, norm2, final or embed."""
    outside = {"final": (net.norm, net.fc_norm), "embed": (net.norm_pre,)}
    if place == "all":
        return [*at(net, "blocks"), *at(net, "final"), *at(net, "embed")]
    found = [b.get_submodule(n) for b in net.blocks for n in _INSIDE.get(place, ())] + [*outside.get(place, ())]
    return [m for m in found if not isinstance(m, nn.Identity)]


def _plant(net: Any, place: str, forward: Callable[[Any, Tensor], Tensor]) -> None:
    for norm in at(net, place):
        override(norm, forward=forward)


def _affine(norm: Any, y: Tensor) -> Tensor:
    return torch.addcmul(norm.bias, y, norm.weight) if getattr(norm, "bias", None) is not None else y * norm.weight


def _rms(norm: Any, x: Tensor) -> Tensor:
    return _affine(norm, x * torch.rsqrt((x * x).mean(-1, True) + norm.eps))


def _centred(norm: Any, x: Tensor) -> Tensor:
    return _affine(norm, nn.functional.layer_norm(x, x.shape[-1:], eps=norm.eps))


def _unbiased(norm: Any, x: Tensor) -> Tensor:
    var, mean = torch.var_mean(x, -1, correction=1, keepdim=True)
    return _affine(norm, (x - mean) / torch.sqrt(var + norm.eps))


def _std(norm: Any, x: Tensor, correction: int) -> Tensor:
    std, mean = torch.std_mean(x, -1, correction=correction, keepdim=True)
    return _affine(norm, (x - mean) / (std + norm.eps))


def _channels(norm: Any, x: Tensor) -> Tensor:
    # A norm along the tokens of [b d t].
    y = nn.functional.layer_norm(x.transpose(1, 2), x.shape[1:2], eps=norm.eps)
    return _affine(norm, y.transpose(1, 2))


def _group(norm: Any, x: Tensor) -> Tensor:
    return nn.functional.group_norm(x.transpose(1, 2), 1, norm.weight, norm.bias, norm.eps).transpose(1, 2)


def _batch(norm: Any, x: Tensor) -> Tensor:
    y = nn.functional.batch_norm(x.transpose(1, 2), None, None, norm.weight, norm.bias, training=True, eps=norm.eps)
    return y.transpose(1, 2)


class Wrong(NamedTuple):
    """What a backward pass lacks or takes instead."""

    mean: bool = True
    projection: bool = True
    gain: str = "right"
    shift: str = "right"


class _Backward(torch.autograd.Function):
    """LayerNorm whose backward pass is written out, and wrong."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float, wrong: Wrong) -> Tensor:
        var, mean = torch.var_mean(x, -1, correction=0, keepdim=True)
        rstd = torch.rsqrt(var + eps)
        ctx.save_for_backward(x, weight, mean, rstd)
        ctx.wrong = wrong
        return (x - mean) * rstd * weight + bias

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, rstd = ctx.saved_tensors
        xh, g = (x - mean) * rstd, dy * weight
        dx = g - g.mean(-1, True) if ctx.wrong.mean else g
        if ctx.wrong.projection:
            dx = dx - xh * (g * xh).mean(-1, True)
        along = tuple(range(x.ndim - 1))

        def summed(terms: Tensor, how: str) -> Tensor:
            # "last": each image's sum overwrites the one before.
            return terms[-1:].sum(along) if how == "last" else terms.sum(along) * (how != "none")

        dw = summed(dy * (x if ctx.wrong.gain == "input" else xh), ctx.wrong.gain)
        return dx * rstd, dw, summed(dy, ctx.wrong.shift), None, None


def _wrongly(norm: Any, x: Tensor, wrong: Wrong) -> Tensor:
    return _Backward.apply(x, norm.weight, norm.bias, norm.eps, wrong)


_FORMS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "kind-rmsnorm": _rms,
    "unbiased": _unbiased,
    "std": partial(_std, correction=0),
    "unbiased-std": partial(_std, correction=1),
}
_OVER: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "over-tokens": _channels,
    "over-both": _group,
    "over-batch": _batch,
}
_TERMS = {"mean": Wrong(mean=False), "variance": Wrong(projection=False), "statistics": Wrong(False, False)}
_GAINS = {
    "gain": Wrong(gain="none"),
    "shift": Wrong(shift="none"),
    "gain-and-shift": Wrong(gain="none", shift="none"),
    "gain-of-input": Wrong(gain="input"),
    "last-image": Wrong(gain="last", shift="last"),
}
# What the catalogue had under another name before there were places.
_CALLED = {"backward-norm-gain-and-shift-blocks": "backward-norm-weights"}


def _name(start: str, place: str) -> str:
    name = start if place == "all" else f"{start}-{place}"
    return _CALLED.get(name, name)


def _layernorms(net: Any, place: str) -> bool:
    found = at(net, place)
    return bool(found) and all(isinstance(m, nn.LayerNorm) for m in found)


def _of_tokens(net: Any, place: str) -> bool:
    return _layernorms(net, place) and isinstance(net.fc_norm, nn.Identity)


def norm_forms(places: tuple[str, ...] = ("all", "blocks", "norm1", "norm2", "final")) -> Iterator[Mutation]:
    """Yield every wrong form and backward pass of the norms, in every place; those of `mutate_more` are left out."""
    for place in places:
        fits = partial(_layernorms, place=place)
        for form, forward in _FORMS.items():
            if place != "all" or form in ("std", "unbiased-std"):
                # A partial is no method: the module must come as its first argument.
                method = partial(_plant, place=place, forward=_method(forward))
                yield Mutation(f"{form} norm, {place}", (_name(f"norm-{form}", place),), method, fits)
        for form, forward in _OVER.items():
            method = partial(_plant, place=place, forward=_method(forward))
            tokens = partial(_of_tokens, place=place)
            yield Mutation(f"{form} norm, {place}", (_name(f"norm-{form}", place),), method, tokens)
        gains = _GAINS if place in ("all", "blocks", "final") else {}
        for part, wrong in {**_TERMS, **gains}.items():
            if (part, place) in (("statistics", "all"), ("gain-and-shift", "blocks")):
                continue
            method = partial(_plant, place=place, forward=_method(partial(_wrongly, wrong=wrong)))
            yield Mutation(f"norm backward, {part}, {place}", (_name(f"backward-norm-{part}", place),), method, fits)


def centred_norms() -> Iterator[Mutation]:
    """Yield LayerNorms for the RMS norms of a network, in one kind of place."""
    for place in ("blocks", "norm1", "norm2", "final"):
        name = f"LayerNorm for RMS norm, {place}"
        yield Mutation(name, (f"norm-kind-layernorm-{place}",), partial(_plant, place=place, forward=_centred))


def _method(forward: Callable[[Any, Tensor], Tensor]) -> Callable[[Any, Tensor], Tensor]:
    def method(self: Any, x: Tensor) -> Tensor:
        return forward(self, x)

    return method
