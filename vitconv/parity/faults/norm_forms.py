"""Faults of one kind of norm: another norm, or one that divides otherwise, stands in one of the places of norms."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from vitconv.parity.faults.fault import Fault
from vitconv.parity.faults.norm import norms_of

if TYPE_CHECKING:
    from torch import Tensor

    from vitconv.parity.faults.fault import OnModel
    from vitconv.vit.model import ViT

# Place: (words, names of norms, kinds of taps, has the network any).
PLACES: dict[str, tuple[str, tuple[str, ...], tuple[str, ...], Callable[[Any], bool]]] = {
    "all": (
        "every norm",
        ("norm1", "norm2", "norm", "pool.norm", "embed.norm", "trunk_norm"),
        ("embed", "attn", "mlp", "block", "norm", "pool"),
        lambda c: True,
    ),
    "blocks": ("the norms in the blocks", ("norm1", "norm2"), ("attn", "mlp", "block"), lambda c: c.block_norms),
    "norm1": ("the norm of the attention branch", ("norm1",), ("attn", "mlp", "block"), lambda c: c.block_norms),
    "norm2": ("the norm of the MLP branch", ("norm2",), ("mlp", "block"), lambda c: c.block_norms),
    "final": ("the final norm", ("norm", "pool.norm"), ("norm", "pool"), lambda c: c.norm or c.pool_norm),
    "embed": ("the norm before the blocks", ("embed.norm",), ("embed",), lambda c: c.embed_norm),
}
IN_BLOCKS = ("blocks", "norm1", "norm2")


def of_layernorm(config: Any) -> bool:
    """Tell whether the norms are LayerNorms."""
    return bool(config.facts.norm_kind == "layernorm")


def changing(names: tuple[str, ...], change: Callable[[Any], None]) -> OnModel:
    """Change the norms of these names."""

    def every(model: ViT, layers: Iterable[int]) -> None:
        for norm in norms_of(model, layers, names):
            change(norm)

    return every


def _kind(kind: str) -> Callable[[Any], None]:
    def change(norm: Any) -> None:
        norm.kind = kind

    return change


def _divided(by: Callable[[Tensor, Any], Tensor]) -> Callable[[Any], None]:
    """Divide what is left when the mean is gone (RMS norm: x itself) by `by(x, norm)`."""

    def change(norm: Any) -> None:
        def forward(x: Tensor) -> Tensor:
            x = x - x.mean(-1, keepdim=True) if norm.kind == "layernorm" else x
            y = x / by(x, norm) * norm.weight
            return y if norm.bias is None else y + norm.bias

        norm.forward = forward

    return change


def _unbiased(x: Tensor, norm: Any) -> Tensor:
    return (x.square().sum(-1, keepdim=True) / (x.shape[-1] - 1) + norm.eps).sqrt()


def _deviation(x: Tensor, norm: Any) -> Tensor:
    return x.square().mean(-1, keepdim=True).sqrt() + norm.eps


def _unbiased_deviation(x: Tensor, norm: Any) -> Tensor:
    return (x.square().sum(-1, keepdim=True) / (x.shape[-1] - 1)).sqrt() + norm.eps


def _over(*axes: int) -> Callable[[Any], None]:
    """Take the statistics of [b t d] over these axes, not over the last one."""

    def change(norm: Any) -> None:
        def forward(x: Tensor) -> Tensor:
            x = x - x.mean(axes, keepdim=True) if norm.kind == "layernorm" else x
            y = x / (x.square().mean(axes, keepdim=True) + norm.eps).sqrt() * norm.weight
            return y if norm.bias is None else y + norm.bias

        norm.forward = forward

    return change


# Form: (words, change, can this network have it).
_FORMS: dict[str, tuple[str, Callable[[Any], None], Callable[[Any], bool]]] = {
    "kind-rmsnorm": (
        "an RMS norm for a LayerNorm, the mean stays",
        _kind("rmsnorm"),
        of_layernorm,
    ),
    "kind-layernorm": (
        "a LayerNorm for an RMS norm, the mean goes",
        _kind("layernorm"),
        lambda c: not of_layernorm(c),
    ),
    "unbiased": ("the unbiased variance, n - 1 for n", _divided(_unbiased), of_layernorm),
    "std": ("eps is added to the deviation, not to the variance", _divided(_deviation), lambda c: True),
    "unbiased-std": (
        "the unbiased deviation, n - 1 for n, with eps added to it, as x.std() + eps has it",
        _divided(_unbiased_deviation),
        of_layernorm,
    ),
}
# Over what statistics are taken.
_OVER: dict[str, tuple[str, Callable[[Any], None], Callable[[Any], bool]]] = {
    "over-tokens": (
        "statistics are taken over the tokens of a channel, as of [b d t]",
        _over(1),
        lambda c: True,
    ),
    "over-both": (
        "statistics are taken over tokens and channels together, as a norm of one group has them",
        _over(1, 2),
        lambda c: True,
    ),
    "over-batch": (
        "statistics of a channel are taken over the batch and its tokens, as a batch norm in training has them",
        _over(0, 1),
        lambda c: True,
    ),
}
# Those of every norm at once that `norm` has.
_THERE = ("kind-rmsnorm", "kind-layernorm", "unbiased")


def _entries() -> Iterator[Fault]:
    for form, (what, change, can) in {**_FORMS, **_OVER}.items():
        for place, (where, names, shows, has) in PLACES.items():
            if (place == "all" and form in _THERE) or (place, form) == ("embed", "kind-layernorm"):
                continue

            # What is pooled has no tokens.
            whole = form in _OVER and place in ("all", "final")

            def fits(c: Any, can: Any = can, has: Any = has, whole: bool = whole) -> bool:
                return can(c) and has(c) and not (whole and c.pool_norm)

            yield Fault(
                f"norm-{form}" if place == "all" else f"norm-{form}-{place}",
                f"{where}: {what}",
                "norm",
                shows=shows,
                model=changing(names, change),
                per_block=place in IN_BLOCKS,
                # What leads into later stages has norms too, which "every" would have to mean; all are LayerNorms.
                families=("plain",)
                if place == "all" or form == "kind-layernorm" or form in _OVER
                else ("plain", "stages"),
                when=fits,
            )


FAULTS = tuple(_entries())
