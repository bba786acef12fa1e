"""Faults of the embedding: the patch kernel, the position table, class, distillation and register tokens."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from vitconv.parity.faults.fault import Fault
from vitconv.vit.config import ViTConfig

if TYPE_CHECKING:
    from torch import Tensor

    from vitconv.parity.faults.fault import OnWeights, Weights
    from vitconv.vit.model import ViT

_KERNEL = "embed.patch.weight"


def _change(name: str, new: Callable[[Tensor], Tensor]) -> OnWeights:
    return lambda w, config, layers: {name: new(w[name])}


def _table(new: Callable[[Tensor], Tensor]) -> OnWeights:
    """Change the table [1+n d] with the class row first."""

    def change(w: Weights, _config: ViTConfig, _layers: Iterable[int]) -> Weights:
        import torch

        rows = new(torch.cat([w["embed.pos_cls"].unsqueeze(0), w["embed.pos"]]))
        return {"embed.pos_cls": rows[0], "embed.pos": rows[1:]}

    return change


def _every_position(new: Callable[[Tensor], Tensor]) -> OnWeights:
    def change(w: Weights, _config: ViTConfig, _layers: Iterable[int]) -> Weights:
        return {name: new(w[name]) for name in w if name.startswith("embed.pos")}

    return change


def _grid(new: Callable[[Tensor], Tensor]) -> OnWeights:
    """Change the grid of positions, [rows columns d]."""

    def change(w: Weights, config: ViTConfig, _layers: Iterable[int]) -> Weights:
        return {"embed.pos": new(w["embed.pos"].unflatten(0, config.grid)).flatten(0, 1)}

    return change


def _relabel(first: str, second: str) -> OnWeights:
    """Read the flat kernel, axes `first`, as if its axes were `second`; both are spelled with c, p and q."""

    def change(w: Weights, _config: ViTConfig, _layers: Iterable[int]) -> Weights:
        kernel = w[_KERNEL]
        size = dict(zip("cpq", kernel.shape[1:], strict=True))
        stored = kernel.permute(0, *("cpq".index(a) + 1 for a in first)).flatten(1)
        read = stored.unflatten(1, tuple(size[a] for a in second))
        return {_KERNEL: read.permute(0, *(second.index(a) + 1 for a in "cpq"))}

    return change


def _swap_tokens(w: Weights, _config: ViTConfig, _layers: Iterable[int]) -> Weights:
    pairs = (("embed.cls", "embed.dist"), ("embed.pos_cls", "embed.pos_dist"))
    return {k: v for a, b in pairs if a in w and b in w for k, v in ((a, w[b]), (b, w[a]))}


def _swap_token_rows(w: Weights, _config: ViTConfig, _layers: Iterable[int]) -> Weights:
    return {"embed.pos_cls": w["embed.pos_dist"], "embed.pos_dist": w["embed.pos_cls"]}


def _without_registers(config: ViTConfig) -> ViTConfig:
    return dataclasses.replace(config, registers=0, pos_reg=False)


def _class_last(model: ViT, _layers: Iterable[int]) -> None:
    from vitconv.parity.faults.swaps import class_token_last

    class_token_last(model)


def _patches_by_column(model: ViT, _layers: Iterable[int]) -> None:
    from vitconv.parity.faults.swaps import patches_by_column

    patches_by_column(model)


def _no_embed_norm(model: ViT, _layers: Iterable[int]) -> None:
    from vitconv.parity.faults.swaps import skip

    skip(model.get_submodule("embed.norm"))


def _entries() -> Iterator[Fault]:
    def entry(name: str, title: str, **more: object) -> Fault:
        return Fault(name, title, "embed", **more)  # type: ignore[arg-type]

    def images(c: ViTConfig) -> bool:
        return c.channels > 0

    def square(c: ViTConfig) -> bool:
        return images(c) and c.patch[0] == c.patch[1] > 1

    def row(c: ViTConfig) -> bool:
        return c.positions > 0 and c.pos_cls and c.cls

    def grid(c: ViTConfig) -> bool:
        return c.positions > 1 and images(c)

    def square_grid(c: ViTConfig) -> bool:
        return grid(c) and len(set(c.grid)) == 1

    kernel = {
        "patch-transposed": ("height and width of the patch kernel are exchanged", lambda k: k.transpose(2, 3)),
        "patch-rotated": ("the patch kernel is turned by 180 degrees", lambda k: k.flip(2, 3)),
    }
    for name, (title, new) in kernel.items():
        yield entry(name, title, weights=_change(_KERNEL, new), when=square)
    yield entry(
        "channels-reversed",
        "channels are in the reverse order, BGR for RGB",
        weights=_change(_KERNEL, lambda k: k.flip(1)),
        when=lambda c: c.channels > 1,
        also="of the images or of the patch kernel",
    )
    for first, second, order in (
        ("cpq", "pqc", "(c p q) are read as (p q c)"),
        ("pqc", "cpq", "(p q c) are read as (c p q)"),
        ("cqp", "qpc", "(c q p) are read as (q p c)"),
    ):
        yield entry(
            f"patch-{first}-as-{second}",
            f"the elements of a patch {order}",
            weights=_relabel(first, second),
            when=lambda c: square(c) and c.channels > 1,
        )
    yield entry(
        "patch-bias-missing",
        "no bias in the patch projection",
        weights=_change("embed.patch.bias", lambda b: b * 0),
        when=lambda c: images(c) and c.patch_bias,
    )
    yield entry("patches-by-column", "patches are cut column by column", model=_patches_by_column, when=grid)
    tables = {
        "pos-class-row-last": (
            "the class row of the position table is taken from its end, and the grid is one row off",
            lambda t: t.roll(1, 0),
            "the table is shifted by one row",
        ),
        "pos-class-row-first": (
            "a position table with the class row at its end is read as one with it first",
            lambda t: t.roll(-1, 0),
            "the table is shifted back by one row",
        ),
    }
    for name, (title, new, also) in tables.items():
        yield entry(name, title, weights=_table(new), when=row, also=also)
    yield entry(
        "pos-class-row-missing",
        "the class token gets no position",
        weights=_change("embed.pos_cls", lambda r: r * 0),
        when=row,
    )
    yield entry(
        "pos-class-row-doubled",
        "the class row is added twice: folded into the token, and added again",
        weights=_change("embed.pos_cls", lambda r: r * 2),
        when=row,
    )
    grids = {
        "pos-transposed": ("rows and columns of the position grid are exchanged", lambda g: g.transpose(0, 1)),
        "pos-flipped": ("the position grid is upside down", lambda g: g.flip(0)),
        "pos-mirrored": ("the position grid is mirrored left to right", lambda g: g.flip(1)),
    }
    for name, (title, new) in grids.items():
        yield entry(name, title, weights=_grid(new), when=square_grid)
    title = "the rows of the position grid are shifted by one patch"
    yield entry("pos-shifted", title, weights=_change("embed.pos", lambda t: t.roll(1, 0)), when=grid)
    title += " backward"
    yield entry("pos-shifted-back", title, weights=_change("embed.pos", lambda t: t.roll(-1, 0)), when=grid)
    yield entry("pos-doubled", "positions are added twice", weights=_every_position(lambda t: t * 2), when=grid)
    yield entry("pos-missing", "positions are not added", weights=_every_position(lambda t: t * 0), when=grid)
    yield entry(
        "class-token-missing",
        "the class token is zero, its position is not",
        weights=_change("embed.cls", lambda t: t * 0),
        when=lambda c: c.cls,
    )
    yield entry(
        "class-last",
        "the class token stands last, with its own position",
        model=_class_last,
        when=lambda c: c.cls and c.facts.pooling == "token" and not c.dist and not c.registers and images(c),
        visible="never",
        also="the logits are the same, tokens pass in another order",
    )
    yield entry(
        "class-last-unmoved",
        "the class token stands last, the position table was not moved with it",
        weights=_table(lambda t: t.roll(1, 0)),
        model=_class_last,
        when=lambda c: row(c) and c.facts.pooling == "token" and not c.dist and not c.registers and images(c),
    )
    both: dict[str, object] = {"when": lambda c: c.cls and c.dist}
    yield entry(
        "class-distillation-swapped",
        "class and distillation token are exchanged, each with its position",
        weights=_swap_tokens,
        **both,
    )
    yield entry(
        "class-distillation-rows-swapped",
        "the position rows of class and distillation token are exchanged",
        weights=_swap_token_rows,
        when=lambda c: c.pos_cls and c.pos_dist,
    )
    yield entry(
        "distillation-token-missing",
        "the distillation token is zero, its position is not",
        weights=_change("embed.dist", lambda t: t * 0),
        when=lambda c: c.dist,
    )
    yield entry(
        "registers-missing",
        "there are no register tokens",
        weights=lambda w, config, layers: {},
        config=_without_registers,
        when=lambda c: c.registers > 0,
    )
    yield entry(
        "registers-zero",
        "the register tokens are zero",
        weights=_change("embed.reg", lambda r: r * 0),
        when=lambda c: c.registers > 0,
    )
    yield entry(
        "registers-reversed",
        "the register tokens are in the reverse order",
        weights=_change("embed.reg", lambda r: r.flip(0)),
        when=lambda c: c.registers > 1,
        visible="never",
        also="attention does not mind the order of tokens, their values pass in another order",
    )
    yield entry(
        "embed-norm-missing",
        "no norm before the blocks",
        model=_no_embed_norm,
        when=lambda c: c.embed_norm,
    )


FAULTS = tuple(_entries())
