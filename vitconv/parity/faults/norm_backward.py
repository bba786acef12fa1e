"""Faults of the norms' backward pass alone: a term of it is missing, or gain and shift get a wrong gradient.

With g = w dy and xh the normalised x: dx = rstd (g - mean(g) - xh mean(g xh)), dw = sum dy xh, db = sum dy
(vitconv.kernels.layer_norm.reference). A kernel or an autograd function of one's own can lose any of these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from vitconv.parity.faults.fault import Fault
from vitconv.parity.faults.norm_forms import IN_BLOCKS, PLACES, changing, of_layernorm

if TYPE_CHECKING:
    from torch import Tensor

    from vitconv.parity.faults.fault import OnWeights, Weights


def _normalised(
    norm: Any, x: Tensor, *, mean: Callable[[Tensor], Tensor], deviation: Callable[[Tensor], Tensor]
) -> Tensor:
    centred = x - mean(x.mean(-1, keepdim=True)) if norm.kind == "layernorm" else x
    true = x - x.mean(-1, keepdim=True) if norm.kind == "layernorm" else x
    return centred / deviation((true.square().mean(-1, keepdim=True) + norm.eps).sqrt())


def _same(x: Tensor) -> Tensor:
    return x


def _still(x: Tensor) -> Tensor:
    return x.detach()


def _terms(mean: Callable[[Tensor], Tensor], deviation: Callable[[Tensor], Tensor]) -> Callable[[Any], None]:
    """Take the mean, or what x is divided by, for a constant."""

    def change(norm: Any) -> None:
        def forward(x: Tensor) -> Tensor:
            y = _normalised(norm, x, mean=mean, deviation=deviation) * norm.weight
            return y if norm.bias is None else y + norm.bias

        norm.forward = forward

    return change


def _gain_of_input(norm: Any) -> None:
    """Give the gain the gradient sum dy x: the input stands where its normalised value should."""

    def forward(x: Tensor) -> Tensor:
        y = _normalised(norm, x, mean=_same, deviation=_same) * norm.weight.detach()
        slope = x.detach() * norm.weight
        y = y + (slope - slope.detach())
        return y if norm.bias is None else y + norm.bias

    norm.forward = forward


def _last_image(norm: Any) -> None:
    """Let gain and shift get the gradient of the last image alone: partial sums are overwritten, not added."""

    def forward(x: Tensor) -> Tensor:
        import torch

        y = _normalised(norm, x, mean=_same, deviation=_same)
        w, b = norm.weight, norm.bias
        halves = (y[:-1] * w.detach(), y[-1:] * w)
        if b is not None:
            halves = (halves[0] + b.detach(), halves[1] + b)
        return torch.cat(halves)

    norm.forward = forward


def _frozen(names: tuple[str, ...], leaves: tuple[str, ...]) -> OnWeights:
    def change(w: Weights, _config: Any, layers: Iterable[int]) -> Weights:
        stems = [f"blocks.{i}.{n}" for i in layers for n in names] + [*names]
        every = [f"{stem}.{leaf}" for stem in stems for leaf in leaves]
        return {name: w[name].detach() for name in every if name in w}

    return change


_TERMS = {
    "mean": ("no gradient passes through the mean: - mean(g) is missing", _terms(_still, _same), of_layernorm),
    "variance": (
        "no gradient passes through what is divided by: the projection - xh mean(g xh) is missing",
        _terms(_same, _still),
        lambda c: True,
    ),
    "statistics": ("no gradient passes through mean and variance", _terms(_still, _still), of_layernorm),
}
_GAINS: dict[str, tuple[str, tuple[str, ...]]] = {
    "gain": ("the gain gets no gradient", ("weight",)),
    "shift": ("the shift gets no gradient", ("bias",)),
    "gain-and-shift": ("gain and shift get no gradient", ("weight", "bias")),
}
_WRONG: dict[str, tuple[str, Callable[[Any], None]]] = {
    "gain-of-input": ("the gain's gradient is taken with the input, not with what is normalised", _gain_of_input),
    "last-image": ("gain and shift get the gradient of the last image alone", _last_image),
}
_OF_GAINS = ("all", "blocks", "final")


def _entries() -> Iterator[Fault]:
    def entry(part: str, place: str, what: str, can: Callable[[Any], bool], **more: Any) -> Fault:
        where, _, _, has = PLACES[place]
        return Fault(
            f"backward-norm-{part}" if place == "all" else f"backward-norm-{part}-{place}",
            f"{where}: {what}",
            "backward",
            "backward",
            ("embed",) if place == "embed" else ("norm",),
            per_block=place in IN_BLOCKS,
            families=("plain",) if place == "all" else ("plain", "stages"),
            when=lambda c: can(c) and has(c),
            **more,
        )

    for part, (what, change, can) in _TERMS.items():
        for place in PLACES:
            # Of every norm: `backward` has it.
            if (part, place) != ("statistics", "all"):
                yield entry(part, place, what, can, model=changing(PLACES[place][1], change))
    for place in _OF_GAINS:
        names = PLACES[place][1]
        for part, (what, leaves) in _GAINS.items():
            # In the blocks: backward-norm-weights.
            if (part, place) != ("gain-and-shift", "blocks"):
                yield entry(part, place, what, _has(leaves), weights=_frozen(names, leaves))
        for part, (what, change) in _WRONG.items():
            yield entry(part, place, what, lambda c: True, model=changing(names, change))


def _has(leaves: tuple[str, ...]) -> Callable[[Any], bool]:
    return lambda c: "bias" not in leaves or bool(c.norm_bias)


FAULTS = tuple(_entries())
