"""Faults of positions inside attention: rotary turns of queries and keys, and biases by relative position (BEiT)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from vitconv.parity.faults.fault import Fault, per_block

if TYPE_CHECKING:
    from torch import Tensor

    from vitconv.parity.faults.fault import OnModel, OnWeights, Weights
    from vitconv.vit.config import ViTConfig
    from vitconv.vit.positions import Turn

# Bases: 100 of DINOv3, 10000 of RoFormer, EVA-02 and most; 10, 1000 and 100 000 have been met too.
BASES = (10.0, 100.0, 1000.0, 10000.0, 100000.0)


def rotary(c: ViTConfig) -> bool:
    """Tell whether queries and keys are turned."""
    return c.facts.position == "rope"


def relative(c: ViTConfig) -> bool:
    """Tell whether logits have biases by relative position."""
    return bool(c.relative)


def _attention(change: Callable[[Any], None]) -> OnModel:
    def every(model: Any, layers: Iterable[int]) -> None:
        for i in layers:
            change(model.blocks[i].attn)

    return every


def _turns(new: Callable[[Turn, bool], Turn | None]) -> OnModel:
    """Give attention other cosines and sines, [n e] or [h n e], out of the right ones and its way of pairing."""

    def change(attn: Any) -> None:
        inner = attn.forward

        def forward(q: Tensor, others: Tensor, turn: Turn | None = None, bias: Tensor | None = None) -> Tensor:
            return inner(q, others, None if turn is None else new(turn, attn.half), bias)  # type: ignore[no-any-return]

        attn.forward = forward

    return _attention(change)


def _around(place: Callable[[Any, Turn], None]) -> OnModel:
    """Change an attention as soon as it knows how it turns: `place(attention, turn)` is called ahead of every pass."""

    def change(attn: Any) -> None:
        inner = attn.forward

        def forward(q: Tensor, others: Tensor, turn: Turn | None = None, bias: Tensor | None = None) -> Tensor:
            if turn is not None:
                place(attn, turn)
            return inner(q, others, turn, bias)  # type: ignore[no-any-return]

        attn.forward = forward

    return _attention(change)


def _back(turn: Turn) -> Turn:
    return turn[0], -turn[1]


def _unturned(part: str) -> OnModel:
    """Turn back what will be turned."""

    def place(attn: Any, turn: Turn) -> None:
        from vitconv.vit.positions import turned

        norm = getattr(attn, f"{part}_norm")
        plain = type(norm).forward
        norm.forward = lambda x: turned(plain(norm, x), _back(turn), attn.half)

    return _around(place)


def _ahead_of_norms(attn: Any, turn: Turn) -> None:
    """Turn, norm, and turn back what will be turned."""
    from vitconv.vit.positions import turned

    for norm in (attn.q_norm, attn.k_norm):
        plain = type(norm).forward
        norm.forward = lambda x, norm=norm, plain=plain: turned(
            plain(norm, turned(x, turn, attn.half)), _back(turn), attn.half
        )


def _values_too(attn: Any, turn: Turn) -> None:
    from vitconv.vit.positions import turned

    plain = type(attn.v).forward
    attn.v.forward = lambda x: turned(attn._split(plain(attn.v, x)), turn, attn.half).transpose(1, 2).flatten(2)  # noqa: SLF001


def _exchanged_pairing(attn: Any) -> None:
    attn.half = not attn.half


def _relaid(turn: Turn, half: bool) -> Turn:
    """Lay cosines and sines of neighbours out for halves; of halves, for neighbours."""
    import torch

    def one(x: Tensor) -> Tensor:
        # Called with the pairing that already stands exchanged.
        return torch.cat([x[..., ::2]] * 2, -1) if half else x.chunk(2, -1)[0].repeat_interleave(2, -1)

    return one(turn[0]), one(turn[1])


def _other_pairs(model: Any, layers: Iterable[int]) -> None:
    chosen = [*layers]
    _attention(_exchanged_pairing)(model, chosen)
    _turns(_relaid)(model, chosen)


def _axes(turn: Turn, half: bool) -> Turn:
    """Let the columns turn what the rows should."""
    import torch

    def one(x: Tensor) -> Tensor:
        if not half:
            return torch.cat(x.chunk(2, -1)[::-1], -1)
        a, b, c, d = x.chunk(4, -1)
        return torch.cat([b, a, d, c], -1)

    return one(turn[0]), one(turn[1])


def _from_the_first_token(prefix: int) -> Callable[[Turn, bool], Turn]:
    """Count the tokens ahead of the patches as patches; the last tokens are left."""

    def new(turn: Turn, _half: bool) -> Turn:
        import torch

        cos, sin = turn
        still = cos[..., :prefix, :]
        return torch.cat([cos, torch.ones_like(still)], -2), torch.cat([sin, torch.zeros_like(still)], -2)

    return new


def _prefix_counted(model: Any, layers: Iterable[int]) -> None:
    _turns(_from_the_first_token(model.config.prefix))(model, layers)


def _rounded(turn: Turn, _half: bool) -> Turn:
    """Move every other number by four units in float32's last place: how its angle was rounded nobody knows."""
    import torch

    def one(x: Tensor) -> Tensor:
        signs = torch.ones_like(x)
        signs[..., 1::2] = -1.0
        return x + 4 * signs * torch.finfo(torch.float32).eps

    return one(turn[0]), one(turn[1])


def _facts(**new: Any) -> Callable[[ViTConfig], ViTConfig]:
    return lambda c: dataclasses.replace(c, facts=c.facts.replaced(new))


def _periods(base: float) -> OnWeights:
    """Make the periods anew that a file holds."""

    def change(w: Weights, _config: ViTConfig, _layers: Iterable[int]) -> Weights:
        import torch

        held = w.get("rope.periods")
        if held is None:
            return {}
        return {"rope.periods": base ** (torch.arange(len(held), dtype=held.dtype) / len(held))}

    return change


def _otherwise(**new: Any) -> Callable[[ViTConfig], bool]:
    """Tell whether a network has other facts than these."""

    def differs(c: ViTConfig) -> bool:
        return rotary(c) and not c.mixed and any(getattr(c.facts, k) != v for k, v in new.items())

    return differs


def _pictured(c: ViTConfig) -> bool:
    """Tell whether places run from -1 to 1 over the picture, as in DINOv3."""
    return rotary(c) and c.facts.rope_layout == "half"


def _counted(c: ViTConfig) -> bool:
    """Tell whether places are counted in patches, as in EVA-02."""
    return rotary(c) and c.facts.rope_layout == "interleaved" and not c.mixed


def _places(new: Callable[[Any, Tensor], Tensor]) -> OnModel:
    """Change the places [n 2 1], in [-1, 1], of DINOv3's form; `new(grid, places)`."""

    def change(model: Any, _layers: Iterable[int]) -> None:
        inner = model.rope._places  # noqa: SLF001
        model.rope._places = lambda grid, like: new(grid, inner(grid, like))  # noqa: SLF001

    return change


def _corners(grid: tuple[int, int], places: Tensor) -> Tensor:
    """Let the first and the last patch stand at -1 and 1."""
    over = places.new_tensor([n / max(n - 1, 1) for n in grid])[None, :, None]
    return places * over


def _tables(new: Callable[[Tensor], Tensor]) -> Callable[[Weights, str, ViTConfig], Weights]:
    """Change tables of offsets [rows columns heads], of a block or the shared one."""

    def change(w: Weights, prefix: str, config: ViTConfig) -> Weights:
        high, wide = config.grid
        return {
            name: new(w[name].unflatten(0, (2 * high - 1, 2 * wide - 1))).flatten(0, 1)
            for name in (f"{prefix}attn.rel_pos", "rel_pos")
            if name in w
        }

    return change


def _class_rows(new: Callable[[Tensor], Tensor]) -> Callable[[Weights, str, ViTConfig], Weights]:
    """Change the rows [3 heads]: class token to patches, patches to it, it to itself."""

    def change(w: Weights, prefix: str, _config: ViTConfig) -> Weights:
        return {name: new(w[name]) for name in (f"{prefix}attn.rel_pos_cls", "rel_pos_cls") if name in w}

    return change


def _biases(new: Callable[[Any, Tensor], Tensor]) -> OnModel:
    def change(attn: Any) -> None:
        inner = attn.forward

        def forward(q: Tensor, others: Tensor, turn: Turn | None = None, bias: Tensor | None = None) -> Tensor:
            return inner(q, others, turn, None if bias is None else new(attn, bias))  # type: ignore[no-any-return]

        attn.forward = forward

    return _attention(change)


def _entries() -> Iterator[Fault]:
    def entry(name: str, title: str, when: Callable[[ViTConfig], bool] = rotary, **more: Any) -> Fault:
        return Fault(name, title, "attention", when=when, **{"per_block": "config" not in more, **more})

    yield entry("rope-missing", "queries and keys are not turned by their positions", model=_turns(lambda t, h: None))
    title = "rotary positions turn the other way round"
    yield entry("rope-inverse", title, model=_turns(lambda t, h: _back(t)))
    title = "the queries alone are turned"
    yield entry("rope-queries-only", title, model=_unturned("k"))
    title = "the keys alone are turned"
    yield entry("rope-keys-only", title, model=_unturned("q"))
    yield entry("rope-values-too", "the values are turned too", model=_around(_values_too))
    title = "queries and keys are turned ahead of their norms"
    yield entry("rope-ahead-of-norms", title, lambda c: rotary(c) and c.qk_norm, model=_around(_ahead_of_norms))
    title = "the pairs that turn are exchanged: halves of a head for neighbours, or neighbours for halves"
    yield entry("rope-pairs", title, model=_other_pairs, also="rotate_half for rotate_every_two")
    title = "components turn with a partner for which cosines and sines are not laid out"
    yield entry("rope-partners", title, model=_attention(_exchanged_pairing), also="rotate_half on repeated angles")
    title = "the rows turn what the columns should, and the columns what the rows should"
    yield entry("rope-axes", title, model=_turns(_axes))
    title = "rotary positions are counted from the first token: the class token and registers are turned as patches"
    yield entry("rope-prefix-counted", title, lambda c: rotary(c) and c.prefix > 0, model=_prefix_counted)
    title = "rotary positions are rounded otherwise: made in another order, or not in float32"
    yield entry("rope-rounded", title, model=_turns(_rounded))
    for base in BASES:
        yield entry(
            f"rope-base-{base:g}", f"the base of the rotary frequencies is {base:g}", _otherwise(rope_theta=base),
            config=_facts(rope_theta=base), facts=("rope_theta",), weights=_periods(base),
        )  # fmt: skip
    for kind, words in {"separate": "its own side", "min": "the shorter side", "max": "the longer side"}.items():

        def another(c: ViTConfig, kind: str = kind) -> bool:
            return _pictured(c) and (c.facts.rope_places or "separate") != kind and c.grid[0] != c.grid[1]

        yield entry(
            f"rope-places-{kind}", f"rotary places run from -1 to 1 over {words} of the grid", another,
            config=_facts(rope_places=kind), facts=("rope_places",),
        )  # fmt: skip
    title = "rotary places run from -1 to 1 between the centres of the outer patches, not between the edges"
    yield entry("rope-places-corners", title, _pictured, per_block=False, model=_places(_corners))
    title = "rotary places run from 0 to 1, not from -1 to 1"
    yield entry("rope-places-0-1", title, _pictured, per_block=False, model=_places(lambda g, p: (p + 1) / 2))
    title = "rotary places are not multiplied by 2 pi"
    yield entry(
        "rope-places-turns", title, _pictured, per_block=False, model=_places(lambda g, p: p / 6.283185307179586)
    )
    for offset, words in ((0.5, "at the centres of the patches"), (1.0, "from 1")):

        def elsewhere(c: ViTConfig, offset: float = offset) -> bool:
            return _counted(c) and not c.periods and c.facts.rope_offset != offset

        yield entry(
            f"rope-offset-{offset:g}", f"rotary places are counted {words}, not from 0", elsewhere,
            config=_facts(rope_offset=offset), facts=("rope_offset",),
        )  # fmt: skip
    for precision in ("float32", "bfloat16"):

        def finer(c: ViTConfig, precision: str = precision) -> bool:
            return _pictured(c) and c.facts.rope_precision != precision

        yield entry(
            f"rope-in-{precision}", f"places of rotary positions are computed in {precision}", finer,
            config=_facts(rope_precision=precision), facts=("rope_precision",),
        )  # fmt: skip
    yield entry(
        "relative-missing", "biases by relative position are not added", relative, model=_biases(lambda a, b: b * 0)
    )
    title = "biases by relative position are added ahead of the scale"
    yield entry("relative-scaled", title, relative, model=_biases(lambda a, b: b * a.scale))
    title = "queries and keys are exchanged in the biases by relative position"
    yield entry("relative-query-key", title, relative, model=_biases(lambda a, b: b.transpose(-2, -1)))
    tables: dict[str, tuple[str, Callable[[Tensor], Tensor]]] = {
        "transposed": (
            "rows and columns of the table of relative positions are exchanged",
            lambda t: t.transpose(0, 1),
        ),
        "flipped": ("relative positions of the patches have the other sign", lambda t: t.flip(0, 1)),
        "rows-flipped": ("relative positions of the patches have the other sign along the rows", lambda t: t.flip(0)),
        "columns-flipped": ("relative positions have the other sign along the columns", lambda t: t.flip(1)),
        "patches-missing": ("the table of relative positions of the patches is not used", lambda t: t * 0),
    }
    for name, (title, table) in tables.items():

        def has(c: ViTConfig, square: bool = name == "transposed") -> bool:
            return relative(c) and (not square or c.grid[0] == c.grid[1])

        yield _of_tables(f"relative-{name}", title, has, _tables(table))
    rows: dict[str, tuple[str, Callable[[Tensor], Tensor]]] = {
        "class-exchanged": (
            "the biases from the class token to patches and back are exchanged", lambda t: t[[1, 0, 2]]
        ),
        "class-rolled": ("the three biases of the class token stand in another order", lambda t: t.roll(1, 0)),
        "class-rolled-back": ("the three biases of the class token stand in another order", lambda t: t.roll(-1, 0)),
        "class-missing": ("the class token has no biases by relative position", lambda t: t * 0),
    }  # fmt: skip
    for name, (title, table) in rows.items():
        yield _of_tables(f"relative-{name}", title, relative, _class_rows(table))


def _of_tables(
    name: str,
    title: str,
    when: Callable[[ViTConfig], bool],
    change: Callable[[Weights, str, ViTConfig], Weights],
) -> Fault:
    return Fault(name, title, "attention", when=when, per_block=True, weights=per_block(change))


FAULTS = tuple(_entries())
