"""Faults with a number that nobody knows beforehand: a factor somewhere, an eps. The search solves for it.

Each stands in the catalogue with a number of no meaning, as an example of itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from vitconv.parity.faults.fault import Fault
from vitconv.parity.faults.norm_forms import IN_BLOCKS, PLACES, changing

if TYPE_CHECKING:
    from torch import Tensor

    from vitconv.vit.model import ViT

Made = dict[str, Any]
Number = Callable[[float], Made]


def _times(module: Any, factor: float) -> None:
    module.register_forward_hook(lambda _m, _x, y: factor * y)


def _norms(names: tuple[str, ...]) -> Number:
    return lambda x: {"model": changing(names, lambda norm: _times(norm, x))}


def _eps(names: tuple[str, ...]) -> Number:
    def change(norm: Any, x: float) -> None:
        norm.eps = x

    return lambda x: {"model": changing(names, lambda norm: change(norm, x))}


def _part(path: str) -> Number:
    def made(x: float) -> Made:
        def change(model: ViT, layers: Iterable[int]) -> None:
            for i in layers:
                _times(model.get_submodule(f"blocks.{i}.{path}"), x)

        return {"model": change}

    return made


def _outside(name: str) -> Number:
    def made(x: float) -> Made:
        def change(model: ViT, _layers: Iterable[int]) -> None:
            _times(model.get_submodule(name) if name else model, x)

        return {"model": change}

    return made


def _scale(x: float) -> Made:
    def change(model: ViT, layers: Iterable[int]) -> None:
        for i in layers:
            attn: Any = model.get_submodule(f"blocks.{i}.attn")
            attn.scale = attn.scale * x

    return {"model": change}


def _added(part: str) -> Number:
    """Multiply a branch as it is added to the stream."""

    def made(x: float) -> Made:
        def change(model: ViT, layers: Iterable[int]) -> None:
            for i in layers:
                _add(model.get_submodule(f"blocks.{i}"), part, x)

        return {"model": change}

    return made


def _add(block: Any, part: str, factor: float) -> None:
    def forward(x: Tensor, *more: Any) -> Tensor:
        one, two = (1.0 if ls is None else ls for ls in (block.ls1, block.ls2))
        normed = block.norm1(x)
        x = x + (factor if part == "attn" else 1.0) * one * block.attn(normed, x if block.raw_kv else normed, *more)
        return x + (factor if part == "mlp" else 1.0) * two * block.mlp(block.norm2(x))

    block.forward = forward


def _images(x: float) -> Made:
    return {"images": lambda images: images * x}


def _positions(x: float) -> Made:
    names = ("embed.pos", "embed.pos_cls")
    return {"weights": lambda w, _config, _layers: {n: w[n] * x for n in names if n in w}}


def _entries() -> Iterator[Fault]:
    def entry(name: str, title: str, site: str, number: Number, start: float = 1.0, **more: Any) -> Fault:
        return Fault(name, title, site, "solved", number=number, start=start, **number(1.1 * start), **more)

    def pre(c: Any) -> bool:
        return bool(c.facts.norm_placement == "pre")

    for place, (where, names, shows, has) in PLACES.items():
        inside: dict[str, Any] = {"shows": shows, "per_block": place in IN_BLOCKS, "when": has}
        yield entry(f"norm-times-{place}", f"{where}: the output is multiplied by", "norm", _norms(names), **inside)
        yield entry(f"eps-{place}-other", f"{where}: eps is", "norm", _eps(names), 1e-5, **inside)
    title = "the attention scale is multiplied by"
    yield entry("scale-times", title, "attention", _scale, per_block=True)
    for part, word in (("attn", "attention"), ("mlp", "MLP")):
        site: dict[str, Any] = {"shows": (part,), "per_block": True}
        yield entry(f"{part}-times", f"the output of the {word} branch is multiplied by", "block", _part(part), **site)
        title = f"the {word} branch is added to the stream multiplied by"
        late: dict[str, Any] = {"shows": ("mlp", "block") if part == "attn" else ("block",), "per_block": True}
        yield entry(f"{part}-added-times", title, "block", _added(part), when=pre, **late)
    yield entry("input-times", "images are multiplied by", "input", _images, when=lambda c: c.channels > 0)
    title = "the patches, ahead of the positions, are multiplied by"
    patches = _outside("embed.patch")
    yield entry("patches-times", title, "embed", patches, when=lambda c: c.channels > 0)
    yield entry("pos-times", "positions are multiplied by", "embed", _positions, when=lambda c: c.positions > 0)
    yield entry("embed-times", "the embedding is multiplied by", "embed", _outside("embed"))
    yield entry("features-times", "the features, ahead of the head, are multiplied by", "head", _outside("pool"))
    head: dict[str, Any] = {"shows": ("head",), "when": lambda c: c.classes > 0}
    yield entry("logits-times", "the logits are multiplied by", "head", _outside("head"), **head)
    yield entry("output-times", "the output, behind the head, is multiplied by", "head", _outside(""), shows=("head",))


FAULTS = tuple(_entries())
