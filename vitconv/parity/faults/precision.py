"""Faults of precision and of randomness: what is rounded that should not be, and what is still random."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from vitconv.parity.faults.fault import Fault
from vitconv.vit.config import ViTConfig

if TYPE_CHECKING:
    from torch import Tensor

    from vitconv.parity.faults.fault import OnModel, OnWeights, Weights
    from vitconv.vit.model import ViT

HALVES = {"fp16": "float16", "bf16": "bfloat16"}


def rounded(x: Tensor, dtype: str) -> Tensor:
    """Round to a dtype and back; the gradient passes as if nothing had been done."""
    import torch

    return x + (x.to(getattr(torch, dtype)).to(x.dtype) - x).detach()


def _weights(dtype: str, chosen: Callable[[str, Tensor], bool]) -> OnWeights:
    def change(w: Weights, _config: ViTConfig, _layers: Iterable[int]) -> Weights:
        return {name: rounded(x, dtype) for name, x in w.items() if chosen(name, x)}

    return change


def _each_block(name: str, dtype: str) -> OnModel:
    def change(model: ViT, layers: Iterable[int]) -> None:
        import torch

        from vitconv.parity.faults import halves

        for i in layers:
            getattr(halves, name)(model.get_submodule(f"blocks.{i}"), getattr(torch, dtype))

    return change


def _norms(dtype: str) -> OnModel:
    def change(model: ViT, layers: Iterable[int]) -> None:
        import torch

        from vitconv.parity.faults.halves import norm_in_half
        from vitconv.parity.faults.norm import norms_of

        for norm in norms_of(model, layers, ("norm1", "norm2", "norm", "pool.norm", "embed.norm", "trunk_norm")):
            norm_in_half(norm, getattr(torch, dtype))

    return change


def _tf32(model: ViT, _layers: Iterable[int]) -> None:
    from vitconv.parity.faults.halves import products_in_tf32

    products_in_tf32(model)


def _matrix(name: str, x: Tensor) -> bool:
    return name.endswith(".weight") and x.ndim > 1


def _images(dtype: str) -> Callable[[Tensor], Tensor]:
    return lambda x: rounded(x, dtype)


def _entries() -> Iterator[Fault]:
    def entry(name: str, title: str, **more: object) -> Fault:
        return Fault(name, title, "precision", **more)  # type: ignore[arg-type]

    for short, dtype in HALVES.items():
        title = f"weights were rounded to {dtype}"
        yield entry(f"weights-{short}", title, weights=_weights(dtype, lambda name, x: True))
        title = f"the matrices of projections were rounded to {dtype}, all else was not"
        yield entry(f"matrices-{short}", title, weights=_weights(dtype, _matrix))
        yield entry(f"images-{short}", f"images are rounded to {dtype}", images=_images(dtype), shows=("embed",))
    for short, dtype in HALVES.items():
        half: dict[str, object] = {"visible": "half", "per_block": True}
        yield entry(f"norm-in-{short}", f"norms are computed in {dtype}", model=_norms(dtype), **half)
        title = f"the residual stream is kept in {dtype}"
        yield entry(f"residual-in-{short}", title, model=_each_block("residual_in_half", dtype), **half)
        title = f"softmax is computed in {dtype}"
        yield entry(f"softmax-in-{short}", title, model=_each_block("softmax_in_half", dtype), **half)
    title = "products are computed in TF32: their operands have 10 bits after the point"
    yield entry("tf32", title, model=_tf32, visible="half")
    random = {
        "dropout-embed": ("dropout acts on the embedding", ("embed",)),
        "dropout-attention": ("dropout acts on the attention probabilities", ("attn",)),
        "dropout-projection": ("dropout acts on the output of attention", ("attn",)),
        "dropout-mlp-hidden": ("dropout acts inside the MLP", ("mlp",)),
        "dropout-mlp": ("dropout acts on the output of the MLP", ("mlp",)),
        "drop-path": ("whole branches are dropped at random (stochastic depth)", ("mlp", "block")),
        "dropout-head": ("dropout acts ahead of the head", ("norm", "pool", "head")),
    }
    for name, (title, shows) in random.items():
        yield entry(f"{name}-alive", title, visible="random", shows=shows)


FAULTS = tuple(_entries())
