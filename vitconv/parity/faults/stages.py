"""Faults of networks of stages: mergings, spatial reduction, focused attention; and those shared with plain ones."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from vitconv.layout.canonical_stages import NEIGHBOURS
from vitconv.parity.faults.fault import Fault, per_block, zeroed
from vitconv.parity.faults.norm import EPS

if TYPE_CHECKING:
    from vitconv.parity.faults.fault import OnModel, OnWeights, Weights
    from vitconv.parity.faults.flat import FlatConfig

# Faults of plain networks that ask for nothing that a block of a stage has not: beginnings of their names.
_SHARED = (
    "input-", "channels-reversed", "patch-transposed", "patch-rotated", "patch-bias-missing",
    "eps-blocks-", "eps-norm1-", "eps-norm2-", "eps-final-", "norm1-norm2-swapped", "attention-branch-norm-missing",
    "mlp-branch-norm-missing", "block-norm-shift-missing", "final-norm-missing",
    "qkv-order-", "q-bias-missing", "v-bias-missing", "out-bias-missing", "qkv-bias-missing",
    "scale-", "activation-", "mlp-up-bias-missing", "mlp-down-bias-missing",
    "placement-pre", "placement-res-post", "attn-branch-missing", "mlp-branch-missing",
    "head-bias-missing", "weights-", "matrices-", "images-",
    "backward-q-detached", "backward-v-detached", "backward-activation-", "backward-q-bias-missing",
    "backward-v-bias-missing", "backward-out-bias-missing", "backward-mlp-", "backward-patch-frozen",
    "backward-norm-weights", "backward-block-detached",
)  # fmt: skip


def has_as_well(name: str) -> bool:
    """Tell whether networks of stages can have this fault of plain ones, as it is written."""
    return name.startswith(_SHARED)


_LEAVES = ("merge.{}.weight", "merge.norm.{}.weight", "merge.norm.{}.bias")


def _reordered(order: tuple[str, ...]) -> OnWeights:
    """Let the merging take the neighbours in another order."""

    def change(w: Weights, prefix: str, _config: Any) -> Weights:
        new: Weights = {}
        for leaf in _LEAVES:
            names = [f"{prefix}way.{leaf.format(at)}" for at in NEIGHBOURS]
            if names[0] in w:
                new |= {name: w[f"{prefix}way.{leaf.format(at)}"] for name, at in zip(names, order, strict=True)}
        return new

    return per_block(change)


# nn.Unfold counts the neighbours of a cell row by row, Microsoft's code column by column.
ROWS = ("h0w0", "h0w1", "h1w0", "h1w1")


def _channels(outermost: bool) -> OnWeights:
    """Read the joined columns (neighbour channel) as (channel neighbour) of nn.Unfold, or the other way."""

    def change(w: Weights, prefix: str, _config: Any) -> Weights:
        import torch

        new: Weights = {}
        for leaf in _LEAVES:
            names = {at: f"{prefix}way.{leaf.format(at)}" for at in NEIGHBOURS}
            if names["h0w0"] not in w:
                continue
            if outermost:
                columns = torch.cat([w[names[at]] for at in NEIGHBOURS], -1)
                parts = columns.unflatten(-1, (-1, 4)).unbind(-1)
                new |= {names[at]: part for at, part in zip(ROWS, parts, strict=True)}
            else:
                columns = torch.stack([w[names[at]] for at in ROWS], -1).flatten(-2)
                new |= {names[at]: part for at, part in zip(NEIGHBOURS, columns.chunk(4, -1), strict=True)}
        return new

    return per_block(change)


def _norms(of: str, change: Callable[[Any], None]) -> OnModel:
    """Change a norm of a block or of what leads to it, where it is there."""

    def every(model: Any, layers: Iterable[int]) -> None:
        for i in layers:
            found = model.blocks[i]
            for part in of.split("."):
                found = getattr(found, part, None)
            if found is not None:
                change(found)

    return every


def _eps(value: float) -> Callable[[Any], None]:
    def change(norm: Any) -> None:
        norm.eps = value
        if getattr(norm, "out_norm", None) is not None:
            norm.out_norm.eps = value

    return change


def _skip(norm: Any) -> None:
    from vitconv.parity.faults.swaps import skip

    skip(norm)


def _without_norm(merge: Any) -> None:
    """Let a merging leave out its norm."""
    if merge.out_norm is not None:
        merge.out_norm = None
    merge.norm = None


# What leads to the blocks, by the places of its norms: of patches, at the ends of stages, and all that there are.
_PATCHES = r"embed\.norm|(.+\.)?way\.patch_norm"
_ENDS = r"trunk_norm|(.+\.)?way\.before"


def _eps_at(places: str, value: float) -> OnModel:
    """Change eps of the norms, and mergings, whose names match a pattern."""

    def change(model: Any, _layers: Iterable[int]) -> None:
        for name, module in model.named_modules():
            if hasattr(module, "eps") and re.fullmatch(places, name):
                module.eps = value

    return change


def _focus(**new: Any) -> OnModel:
    """Change the form of focused attention, in every block that has it."""

    def change(model: Any, layers: Iterable[int]) -> None:
        for i in layers:
            attn = model.blocks[i].attn
            if getattr(attn, "form", None) is not None:
                attn.form = dataclasses.replace(attn.form, **new)

    return change


def _zero_positions(w: Weights, _config: Any, _layers: Iterable[int]) -> Weights:
    return {name: x * 0 for name, x in w.items() if name.endswith("way.pos")}


def _entries() -> Iterator[Fault]:
    def entry(name: str, title: str, when: Callable[[Any], bool], **more: Any) -> Fault:
        return Fault(name, title, more.pop("site", "block"), families=("stages",), when=when, **more)

    def merged(c: FlatConfig) -> bool:
        return c.somewhere("merge.h0w0.weight")

    def reduced(c: FlatConfig) -> bool:
        return c.somewhere("attn.sr_norm.weight")

    def focused(c: FlatConfig) -> bool:
        return c.facts.focusing_factor is not None

    orders = {
        "rows": ("row by row, not column by column", ROWS),
        "reversed": ("in the reverse order", NEIGHBOURS[::-1]),
        "columns-exchanged": ("with left and right exchanged", ("h0w1", "h1w1", "h0w0", "h1w0")),
        "rows-exchanged": ("with above and below exchanged", ("h1w0", "h0w0", "h1w1", "h0w1")),
    }
    for name, (words, order) in orders.items():
        title = f"mergings join the four neighbours {words}"
        yield entry(f"merge-order-{name}", title, merged, weights=_reordered(order), per_block=True)
    title = "a merging's columns, neighbour by neighbour, are read as nn.Unfold has them, channel by channel"
    yield entry("merge-as-unfold", title, merged, weights=_channels(True), per_block=True, also="mmpretrain's order")
    title = "a merging's columns, of nn.Unfold, channel by channel, are read as neighbour by neighbour"
    yield entry("merge-of-unfold", title, merged, weights=_channels(False), per_block=True, also="mmpretrain's order")
    title = "mergings have no norm"
    yield entry("merge-norm-missing", title, merged, model=_norms("way.merge", _without_norm), per_block=True)
    for eps in EPS:

        def differs(has: Callable[[FlatConfig], bool], eps: str = eps) -> Callable[[FlatConfig], bool]:
            return lambda c: has(c) and c.facts.embed_norm_eps != float(eps)

        known: dict[str, Any] = {"facts": ("embed_norm_eps",)}
        change = _norms("way.merge", _eps(float(eps)))
        title = f"eps of the norms of mergings is {eps}"
        yield entry(f"eps-merge-{eps}", title, differs(merged), model=change, per_block=True,
                    **known)  # fmt: skip
        change, title = _norms("attn.sr_norm", _eps(float(eps))), f"eps of the norms of reduced keys is {eps}"
        yield entry(f"eps-reduced-{eps}", title, differs(reduced), model=change,
                    per_block=True, **known)  # fmt: skip
        title = f"eps of the norms of patches is {eps}"
        patches = differs(lambda c: c.embed_norm or c.somewhere("patch_norm.weight"))
        yield entry(f"eps-patches-{eps}", title, patches, site="embed", shows=("embed", "attn", "mlp", "block"),
                    model=_eps_at(_PATCHES, float(eps)), **known)  # fmt: skip

        def other_ends(c: FlatConfig, eps: str = eps) -> bool:
            return c.ends and c.facts.norm_eps != float(eps)

        yield entry(f"eps-ends-{eps}", f"eps of the norms at the ends of stages is {eps}", other_ends, site="norm",
                    shows=("attn", "mlp", "block", "norm", "pool"), model=_eps_at(_ENDS, float(eps)),
                    facts=("norm_eps",))  # fmt: skip

        def any_other(c: FlatConfig, eps: str = eps) -> bool:
            told = (c.facts.norm_eps, c.facts.embed_norm_eps, c.facts.final_norm_eps)
            return any(e not in (None, float(eps)) for e in told)

        yield entry(f"eps-everywhere-{eps}", f"eps of all norms is {eps}", any_other, site="norm",
                    shows=("embed", "attn", "mlp", "block", "norm", "pool"), model=_eps_at(".*", float(eps)),
                    facts=("norm_eps", "embed_norm_eps", "final_norm_eps"))  # fmt: skip
    title = "reduced keys have no norm"
    yield entry("reduced-norm-missing", title, reduced, model=_norms("attn.sr_norm", _skip), per_block=True)
    yield entry(
        "reduced-bias-missing",
        "no bias in the convolution that reduces the keys",
        lambda c: c.somewhere("attn.sr.bias"),
        weights=zeroed("attn.sr.bias"),
        per_block=True,
    )
    title = "later stages add no positions"
    yield entry(
        "stage-positions-missing", title, lambda c: c.somewhere(".pos"), weights=_zero_positions, site="input",
        shows=("embed", "attn", "mlp", "block"),
    )  # fmt: skip
    for power in (1, 2, 3, 4, 6, 8):

        def other_power(c: FlatConfig, power: int = power) -> bool:
            return focused(c) and c.facts.focusing_factor != power

        yield entry(
            f"focusing-factor-{power}",
            f"the focusing factor is {power}",
            other_power,
            model=_focus(power=power),
            per_block=True,
            facts=("focusing_factor",),
        )
    for mode in ("sum", "mean"):
        yield entry(
            f"focused-eps-{mode}",
            f"eps of focused attention stands beside a {mode}",
            focused,
            model=_focus(variant="stable", eps_mode=mode),
            per_block=True,
            facts=("focused_eps_mode", "attention"),
        )
    for name, words, stems in (
        ("positions", "the table of positions is not added to the keys", ("attn.pos", "attn.b0.pos", "attn.b1.pos")),
        (
            "convolution",
            "the depthwise convolution of the values is left out",
            tuple(f"attn.{b}dwc.{leaf}" for b in ("", "b0.", "b1.") for leaf in ("weight", "bias")),
        ),
    ):
        title = f"focused attention: {words}"
        yield entry(f"focused-{name}-missing", title, focused, weights=zeroed(*stems), per_block=True)


FAULTS = tuple(_entries())
