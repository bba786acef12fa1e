"""Faults of the block: where norms stand, the residual's factor, LayerScale, which block is which."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from vitconv.layout.canonical import layer_of
from vitconv.parity.faults.fault import Fault, per_block, swapped
from vitconv.vit.config import ViTConfig

if TYPE_CHECKING:
    from vitconv.parity.faults.fault import OnModel, OnWeights, Weights
    from vitconv.vit.model import ViT

_WORDS = {
    "pre": "before the branches (pre-norm)",
    "post": "after the residual sums (post-norm)",
    "deepnorm": "as in DeepNorm, with the residual scaled by (2 depth)^(1/4)",
    "res-post": "at the end of the branches (res-post-norm)",
}


def deepnorm_alpha(depth: int) -> float:
    """Return the factor of the residual of an encoder of this depth (Wang et al., DeepNet, 2022, table 2)."""
    return (2 * depth) ** 0.25


def _placement(name: str) -> OnModel:
    def change(model: ViT, layers: Iterable[int]) -> None:
        for i in layers:
            block = model.get_submodule(f"blocks.{i}")
            block.placement = name  # type: ignore[assignment]
            block.alpha = deepnorm_alpha(model.config.depth) if name == "deepnorm" else 1.0  # type: ignore[assignment]

    return change


def _alpha(of_depth: int | None, value: float = 1.0) -> OnModel:
    def change(model: ViT, layers: Iterable[int]) -> None:
        for i in layers:
            alpha = value if of_depth is None else deepnorm_alpha(of_depth or model.config.depth)
            model.get_submodule(f"blocks.{i}").alpha = alpha  # type: ignore[assignment]

    return change


def _gain(*which: str, power: int) -> OnWeights:
    def change(w: Weights, prefix: str, _config: ViTConfig) -> Weights:
        return {prefix + ls: w[prefix + ls] ** power if power else w[prefix + ls] * 0 + 1 for ls in which}

    return per_block(change)


def _with_next(w: Weights, _config: ViTConfig, layers: Iterable[int]) -> Weights:
    other = {i: j for first in layers for i, j in ((first, first + 1), (first + 1, first))}
    return {
        name: w[f"blocks.{other[i]}{name[len(f'blocks.{i}') :]}"]
        for name in w
        if (i := layer_of(name)) is not None and i in other
    }


def _reversed(w: Weights, config: ViTConfig, _layers: Iterable[int]) -> Weights:
    return {
        name: w[f"blocks.{config.depth - 1 - i}{name[len(f'blocks.{i}') :]}"]
        for name in w
        if (i := layer_of(name)) is not None
    }


def _parallel(model: ViT, layers: Iterable[int]) -> None:
    from vitconv.parity.faults.swaps import parallel_branches

    for i in layers:
        parallel_branches(model.get_submodule(f"blocks.{i}"))


def _from_norm(*parts: str) -> OnModel:
    def change(model: ViT, layers: Iterable[int]) -> None:
        from vitconv.parity.faults.swaps import residual_from_norm

        for i in layers:
            residual_from_norm(model.get_submodule(f"blocks.{i}"), parts)

    return change


def _branch_missing(*parts: str) -> OnModel:
    def change(model: ViT, layers: Iterable[int]) -> None:
        from vitconv.parity.faults.swaps import drop_branch

        for i in layers:
            for part in parts:
                drop_branch(model.get_submodule(f"blocks.{i}.{part}"))

    return change


def _entries() -> Iterator[Fault]:
    def entry(name: str, title: str, **more: object) -> Fault:
        return Fault(name, title, "block", **more)  # type: ignore[arg-type]

    def deep(c: ViTConfig) -> bool:
        return c.facts.norm_placement == "deepnorm"

    def scaled(c: ViTConfig) -> bool:
        return c.layer_scale

    for name in _WORDS:
        yield entry(
            f"placement-{name}",
            f"norms stand {_WORDS[name]}",
            model=_placement(name),
            per_block=True,
            facts=("norm_placement",),
            when=lambda c, name=name: (
                c.block_norms and c.facts.norm_placement != name and c.facts.kv_normalised is not False
            ),
        )
    alphas = {
        "one": ("1", _alpha(None, 1.0), None),
        "one-layer": ("that of depth 1, as in configurations of one layer each", _alpha(1), 1),
        "twice-depth": ("that of twice the depth", lambda m, ls: _alpha(2 * m.config.depth)(m, ls), -2),
        "half-depth": ("that of half the depth", lambda m, ls: _alpha(m.config.depth // 2)(m, ls), -1),
        "depth": ("that of the whole depth", lambda m, ls: _alpha(m.config.depth)(m, ls), 0),
    }
    for name, (words, change, kind) in alphas.items():

        def differs(c: ViTConfig, kind: int | None = kind) -> bool:
            depth = {None: None, 1: 1, -2: 2 * c.depth, -1: c.depth // 2, 0: c.depth}[kind]
            now = c.facts.residual_alpha or 1.0
            return deep(c) and depth != 0 and abs((1.0 if depth is None else deepnorm_alpha(depth)) - now) > 1e-6

        yield entry(
            f"alpha-{name}",
            f"the residual's factor is {words}",
            model=change,
            per_block=True,
            facts=("residual_alpha",),
            when=differs,
        )
    both = ("ls1", "ls2")
    later = ("mlp", "block")
    yield entry(
        "layer-scale-missing",
        "LayerScale is not applied",
        weights=_gain(*both, power=0),
        per_block=True,
        when=scaled,
        shows=later,
    )
    for ls, part in (("ls1", "attention"), ("ls2", "MLP")):
        title = f"LayerScale of the {part} branch is not applied"
        shows = later if ls == "ls1" else ("block",)
        yield entry(f"{ls}-missing", title, weights=_gain(ls, power=0), per_block=True, when=scaled, shows=shows)
    yield entry(
        "layer-scale-twice",
        "LayerScale is applied twice: folded into the weights, and applied again",
        weights=_gain(*both, power=2),
        per_block=True,
        when=scaled,
        shows=later,
    )
    title = "LayerScale of the attention and MLP branches is exchanged"
    yield entry("layer-scale-swapped", title, weights=swapped(*both), per_block=True, when=scaled, shows=later)
    title = "attention and MLP run side by side, on the same input"
    yield entry("parallel", title, model=_parallel, per_block=True, shows=later,
                when=lambda c: c.facts.norm_placement == "pre")  # fmt: skip
    for name, word, parts in (
        ("residual", "residuals of both branches are", ("attn", "mlp")),
        ("attn-residual", "residual of attention is", ("attn",)),
        ("mlp-residual", "residual of the MLP is", ("mlp",)),
    ):
        yield entry(
            f"{name}-from-norm",
            f"the {word} taken behind the norm, n(x) + f(n(x)) for x + f(n(x))",
            model=_from_norm(*parts),
            per_block=True,
            shows=later if "attn" in parts else ("block",),
            when=lambda c: c.facts.norm_placement == "pre",
        )
    for part, word in (("attn", "attention"), ("mlp", "MLP")):
        title = f"the {word} branch is left out"
        yield entry(f"{part}-branch-missing", title, model=_branch_missing(part), per_block=True)
    yield entry("block-missing", "the block is left out", model=_branch_missing("attn", "mlp"), per_block=True)
    title = "the block and the next one are exchanged"
    yield entry("swapped-with-next", title, weights=_with_next, per_block=True, single=True, when=lambda c: c.depth > 1)
    title = "blocks run in the reverse order"
    yield entry("blocks-reversed", title, weights=_reversed, when=lambda c: c.depth > 2)


FAULTS = tuple(_entries())
