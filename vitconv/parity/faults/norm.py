"""Faults of the norms: eps by place, kind, gain and shift, which norm stands where."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from vitconv.parity.faults.fault import Fault, swapped, zeroed
from vitconv.vit.config import ViTConfig

if TYPE_CHECKING:
    from vitconv.parity.faults.fault import OnModel, OnWeights, Weights
    from vitconv.vit.model import ViT
    from vitconv.vit.norm import Norm

# 1e-12: transformers' ViT. 1e-8: Adam's, and some JAX ports. 1e-7: MindSpore. 1e-6: timm, JAX. 1e-5: torch, xformers.
# 1.6e-5: xformers 0.0.11-0.0.26 on fp16 inputs. 1e-3: Keras.
EPS = ("1e-12", "1e-8", "1e-7", "1e-6", "1e-5", "1.6e-5", "1e-3")

# Place: (words, which names, kinds of taps, fact, has the network any).
_PLACES: dict[
    str, tuple[str, tuple[str, ...], tuple[str, ...], tuple[str, ...], Callable[[ViTConfig, float], bool]]
] = {
    "blocks": (
        "of the norms in the blocks",
        ("norm1", "norm2"),
        ("attn", "mlp", "block"),
        ("norm_eps",),
        lambda c, eps: c.block_norms and c.facts.norm_eps != eps,
    ),
    "norm1": (
        "of the norms of the attention branches",
        ("norm1",),
        ("attn", "mlp", "block"),
        ("norm_eps",),
        lambda c, eps: c.block_norms and c.facts.norm_eps != eps,
    ),
    "norm2": (
        "of the norms of the MLP branches",
        ("norm2",),
        ("mlp", "block"),
        ("norm_eps",),
        lambda c, eps: c.block_norms and c.facts.norm_eps != eps,
    ),
    "final": (
        "of the final norm",
        ("norm", "pool.norm"),
        ("norm", "pool"),
        ("final_norm_eps",),
        lambda c, eps: (c.norm or c.pool_norm) and c.facts.final_norm_eps != eps,
    ),
    "embed": (
        "of the norm before the blocks",
        ("embed.norm",),
        ("embed",),
        ("embed_norm_eps",),
        lambda c, eps: c.embed_norm and c.facts.embed_norm_eps != eps,
    ),
    "qk": (
        "of the query and key norms",
        ("attn.q_norm", "attn.k_norm"),
        ("attn",),
        ("qk_norm_eps",),
        lambda c, eps: c.qk_norm and c.facts.qk_norm_eps != eps,
    ),
    "all": (
        "of every norm",
        ("norm1", "norm2", "norm", "pool.norm", "embed.norm", "trunk_norm", "attn.norm", "mlp.norm"),
        ("embed", "attn", "mlp", "block", "norm", "pool"),
        ("norm_eps", "final_norm_eps", "embed_norm_eps"),
        lambda c, eps: (
            (c.norm or c.pool_norm or c.embed_norm)
            and any(
                e not in (None, eps) for e in (c.facts.norm_eps, c.facts.final_norm_eps, c.facts.embed_norm_eps)
            )
        ),
    ),
}  # fmt: skip


def norms_of(model: ViT, layers: Iterable[int], names: Iterable[str]) -> Iterator[Norm]:
    """Yield the norms of these names that exist: those in the given blocks, and those outside of all blocks."""
    from vitconv.vit.norm import Norm

    chosen = set(names)
    inside = {f"blocks.{i}.{name}" for i in layers for name in chosen}
    for name, module in model.named_modules():
        if isinstance(module, Norm) and (name in inside or name in chosen):
            yield module


def _eps(names: tuple[str, ...], value: float) -> OnModel:
    def change(model: ViT, layers: Iterable[int]) -> None:
        for norm in norms_of(model, layers, names):
            norm.eps = value

    return change


_BLOCK = ("norm1", "norm2")
_EVERY = (*_BLOCK, "norm", "pool.norm", "embed.norm", "trunk_norm")


def _kind(kind: str) -> OnModel:
    def change(model: ViT, layers: Iterable[int]) -> None:
        for norm in norms_of(model, layers, _EVERY):
            norm.kind = kind

    return change


def _unbiased(model: ViT, layers: Iterable[int]) -> None:
    from vitconv.parity.faults.swaps import unbiased_variance

    for norm in norms_of(model, layers, _EVERY):
        unbiased_variance(norm)


def _skip(*names: str) -> OnModel:
    def change(model: ViT, layers: Iterable[int]) -> None:
        from vitconv.parity.faults.swaps import skip

        for norm in norms_of(model, layers, names):
            skip(norm)

    return change


def _leaf(leaf: str, new: Callable) -> OnWeights:
    def change(w: Weights, _config: ViTConfig, layers: Iterable[int]) -> Weights:
        names = [f"blocks.{i}.{n}.{leaf}" for i in layers for n in _BLOCK] + [f"{n}.{leaf}" for n in _EVERY]
        return {name: new(w[name]) for name in names if name in w}

    return change


def _entries() -> Iterator[Fault]:
    def entry(name: str, title: str, **more: object) -> Fault:
        return Fault(name, title, "norm", **more)  # type: ignore[arg-type]

    for place, (words, names, shows, facts, has) in _PLACES.items():
        for eps in EPS:
            yield entry(
                f"eps-{place}-{eps}",
                f"eps {words} is {eps}",
                model=_eps(names, float(eps)),
                shows=shows,
                facts=facts,
                per_block=place in ("blocks", "norm1", "norm2", "qk"),
                when=lambda c, has=has, eps=eps: has(c, float(eps)),
            )
    everywhere = ("embed", "attn", "mlp", "block", "norm", "pool")
    yield entry(
        "norm1-norm2-swapped",
        "the norms of the attention and MLP branches are exchanged",
        weights=swapped("norm1", "norm2"),
        per_block=True,
        when=lambda c: c.block_norms,
    )
    for place, name in (("attention", "norm1"), ("mlp", "norm2")):
        title = f"no norm in the {place if place == 'attention' else 'MLP'} branch"
        missing = f"{place}-branch-norm-missing"
        yield entry(missing, title, model=_skip(name), per_block=True, when=lambda c: c.block_norms)
    yield entry(
        "block-norm-shift-missing",
        "the norms in the blocks do not add their bias",
        weights=zeroed("norm1.bias", "norm2.bias"),
        per_block=True,
        when=lambda c: c.block_norms and c.norm_bias,
    )
    title = "the gain of every norm is 1 + weight"
    yield entry("norm-gain-offset", title, weights=_leaf("weight", lambda g: g + 1), shows=everywhere)
    for kind, words in (("rmsnorm", "an RMS norm, the mean stays"), ("layernorm", "a LayerNorm, the mean goes")):
        yield entry(
            f"norm-kind-{kind}",
            f"every norm is {words}",
            model=_kind(kind),
            shows=everywhere,
            facts=("norm_kind",),
            when=lambda c, kind=kind: c.facts.norm_kind != kind,
        )
    yield entry(
        "norm-unbiased",
        "norms divide by the unbiased variance, n - 1 for n",
        model=_unbiased,
        shows=everywhere,
        when=lambda c: c.facts.norm_kind == "layernorm",
    )
    final: dict[str, object] = {"shows": ("norm", "pool", "head"), "when": lambda c: c.norm}
    yield entry("final-norm-missing", "the final norm is skipped", model=_skip("norm"), **final)
    yield entry(
        "trunk-norm-missing",
        "the norm of the trunk, ahead of the final norm, is skipped",
        model=_skip("trunk_norm"),
        shows=("norm", "pool", "head"),
        when=lambda c: c.trunk_norm,
    )


FAULTS = tuple(_entries())
