"""Spoil what timm's Eva and Beit have of positions inside attention. See `vitconv.bench.mutate`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import pi
from typing import Any

import torch
from torch import Tensor, nn

from vitconv.bench.mutate import Mutation, override

# x [b h n e], sines and cosines side by side [n 2e], whether halves are paired.
Apply = Callable[[Callable[..., Tensor], Tensor, Tensor, bool], Tensor]


def turns(net: Any) -> bool:
    """Whether queries and keys are turned."""
    return getattr(net, "rope", None) is not None


def _halved(net: Any) -> bool:
    return turns(net) and bool(getattr(net.blocks[0].attn, "rotate_half", False))


def _biased(net: Any) -> bool:
    return any(getattr(m, "relative_position_bias_table", None) is not None for m in net.modules())


def _calling(new: Apply, parts: tuple[int, ...] = (0, 1), values: bool = False) -> Callable[[Any], None]:
    """Let attention find another function where it turns its queries (0) and keys (1), or its values too."""

    def plant(net: Any) -> None:
        import timm.layers.attention as shared
        import timm.models.eva as own

        for block in net.blocks:
            whole = type(block.attn).forward

            def forward(self: Any, x: Tensor, rope: Any = None, whole: Any = whole, **more: Any) -> Tensor:
                right, product, calls = own.apply_rot_embed_cat, nn.functional.scaled_dot_product_attention, [0]

                def apply(y: Tensor, emb: Tensor, half: bool = False) -> Tensor:
                    mine = calls[0] in parts
                    calls[0] += 1
                    return new(right, y, emb, half) if mine else right(y, emb, half=half)

                def attend(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
                    ahead = v.shape[2] - rope.shape[-2]
                    half = getattr(self, "rotate_half", False)
                    v = torch.cat([v[:, :, :ahead], right(v[:, :, ahead:], rope, half=half)], 2)
                    return product(q, k, v, **options)

                own.apply_rot_embed_cat = shared.apply_rot_embed_cat = apply
                if values:
                    nn.functional.scaled_dot_product_attention = attend  # type: ignore[assignment]
                try:
                    return whole(self, x, rope=rope, **more)  # type: ignore[no-any-return]
                finally:
                    own.apply_rot_embed_cat = shared.apply_rot_embed_cat = right
                    nn.functional.scaled_dot_product_attention = product

            override(block.attn, forward=forward)

    return plant


def _other(change: Callable[[Tensor], Tensor]) -> Apply:
    """Change sines and cosines alike, each [n e]."""
    return lambda right, x, emb, half: right(x, torch.cat([change(t) for t in emb.chunk(2, -1)], -1), half=half)


def _negative_sines(right: Callable[..., Tensor], x: Tensor, emb: Tensor, half: bool) -> Tensor:
    sin, cos = emb.chunk(2, -1)
    return right(x, torch.cat([-sin, cos], -1), half=half)


def _relaid(right: Callable[..., Tensor], x: Tensor, emb: Tensor, half: bool) -> Tensor:
    def one(t: Tensor) -> Tensor:
        return t.chunk(2, -1)[0].repeat_interleave(2, -1) if half else torch.cat([t[..., ::2]] * 2, -1)

    return right(x, torch.cat([one(t) for t in emb.chunk(2, -1)], -1), half=not half)


def _swapped_axes(right: Callable[..., Tensor], x: Tensor, emb: Tensor, half: bool) -> Tensor:
    def one(t: Tensor) -> Tensor:
        quarters = t.chunk(4, -1)
        return torch.cat([quarters[i] for i in ((1, 0, 3, 2) if half else (2, 3, 0, 1))], -1)

    return right(x, torch.cat([one(t) for t in emb.chunk(2, -1)], -1), half=half)


def _all_tokens(net: Any) -> None:
    def from_the_first(right: Callable[..., Tensor], x: Tensor, emb: Tensor, half: bool) -> Tensor:
        n = emb.shape[-2]
        return torch.cat([right(x[:, :, :n], emb, half=half), x[:, :, n:]], 2)

    _calling(from_the_first)(net)
    for block in net.blocks:
        block.attn.num_prefix_tokens = 0


def _remade(**options: Any) -> Callable[[Any], None]:
    """Give the network the rotary positions that timm makes with other options."""

    def plant(net: Any) -> None:
        rope = net.rope
        kind = type(rope)
        kept = ("temperature", "grid_indexing", "rotate_half", "normalize_coords", "ref_feat_shape", "grid_offset")
        usual = {name: getattr(rope, name) for name in kept if hasattr(rope, name)}
        usual |= {"feat_shape": net.patch_embed.grid_size, **({} if _halved(net) else {"in_pixels": False})}
        net.rope = kind(rope.dim, **{**usual, **options}).to(torch.float64)

    return plant


def of_turns() -> Iterator[Mutation]:
    """Yield faults of rotary positions."""
    calls: dict[str, tuple[str, Callable[[Any], None]]] = {
        "no turns": ("rope-missing", _calling(lambda right, x, emb, half: x)),
        "turns back": ("rope-inverse", _calling(_negative_sines)),
        "queries not turned": ("rope-keys-only", _calling(lambda right, x, emb, half: x, (0,))),
        "keys not turned": ("rope-queries-only", _calling(lambda right, x, emb, half: x, (1,))),
        "values turned": ("rope-values-too", _calling(lambda r, x, emb, half: r(x, emb, half=half), values=True)),
        "other pairs": ("rope-pairs", _calling(_relaid)),
        "other partners": ("rope-partners", _calling(lambda r, x, emb, half: r(x, emb, half=not half))),
        "axes exchanged": ("rope-axes", _calling(_swapped_axes)),
        "prefix counted": ("rope-prefix-counted", _all_tokens),
    }  # fmt: skip
    for name, (truth, plant) in calls.items():
        yield Mutation(f"rope: {name}", (truth,), plant, turns)
    rounded = _calling(_other(lambda t: t * (1 + 3e-8)))
    yield Mutation("rope: turns rounded", ("rope-rounded",), rounded, turns, exact=True)
    for base in (10.0, 100.0, 1000.0, 10000.0, 100000.0):

        def of_another(net: Any, base: float = base) -> bool:
            return turns(net) and net.rope.temperature != base

        yield Mutation(f"rope: base {base:g}", (f"rope-base-{base:g}",), _remade(temperature=base), of_another)
    for kind in ("min", "max"):
        plant = _remade(normalize_coords=kind)
        yield Mutation(f"rope: over the {kind} side", (f"rope-places-{kind}",), plant, _halved)
    places: dict[str, tuple[str, Callable[[Tensor, Any], Tensor]]] = {
        "from 0 to 1": ("rope-places-0-1", lambda at, grid: (at + 1) / 2),
        "between centres": ("rope-places-corners", lambda at, grid: at * at.new_tensor([n / (n - 1) for n in grid])),
        "no 2 pi": ("rope-places-turns", lambda at, grid: at / (2 * pi)),
    }
    for name, (truth, change) in places.items():
        yield Mutation(f"rope: {name}", (truth,), _placed(change), _halved)
    for offset, name in ((0.5, "from the centres"), (1.0, "from 1")):
        plant = _remade(grid_offset=offset)
        truths = (f"rope-offset-{offset:g}",)
        yield Mutation(f"rope: {name}", truths, plant, lambda net: turns(net) and not _halved(net))


def _placed(change: Callable[[Tensor, Any], Tensor]) -> Callable[[Any], None]:
    """Change the places [n 2], from -1 to 1, of DINOv3's positions; `change(places, grid)`."""

    def plant(net: Any) -> None:
        grid, whole = net.patch_embed.grid_size, type(net.rope)._get_pos_embed_from_coords  # noqa: SLF001

        def embed(self: Any, coords: Tensor) -> Any:
            return whole(self, change(coords, grid))

        override(net.rope, _get_pos_embed_from_coords=embed)
        net.rope.pos_embed_cached = net.rope._create_embed(grid).to(net.rope.pos_embed_cached)  # noqa: SLF001

    return plant


def _index(change: Callable[[Tensor, int], Tensor]) -> Callable[[Any], None]:
    """Change Beit's index [1+n 1+n] into a table whose last three rows are the class token's."""

    def plant(net: Any) -> None:
        for m in net.modules():
            if getattr(m, "relative_position_index", None) is not None:
                table = m.relative_position_bias_table
                m.relative_position_index = change(m.relative_position_index.clone(), len(table) - 3)

    return plant


def _valued(change: Callable[[Tensor, Any], Tensor]) -> Callable[[Any], None]:
    """Change the biases [1 h 1+n 1+n] themselves; `change(biases, attention)`."""

    def plant(net: Any) -> None:
        for m in net.modules():
            if getattr(m, "relative_position_bias_table", None) is not None:
                whole = type(m)._get_rel_pos_bias  # noqa: SLF001
                override(m, _get_rel_pos_bias=lambda self, whole=whole: change(whole(self), self))

    return plant


def _without_class(biases: Tensor, _attn: Any) -> Tensor:
    kept = torch.zeros_like(biases)
    kept[..., 1:, 1:] = 1
    return biases * kept


def _mapped(change: Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor]]) -> Callable[[Any], None]:
    def new(index: Tensor, rows: int) -> Tensor:
        side = round(rows**0.5)
        down, right = change(index // side, index % side, side - 1)
        return torch.where(index < rows, down * side + right, index)

    return _index(new)


def _named(names: tuple[int, int, int]) -> Callable[[Any], None]:
    def new(index: Tensor, rows: int) -> Tensor:
        other = torch.tensor(names)[(index - rows).clamp(min=0)] + rows
        return torch.where(index < rows, index, other)

    return _index(new)


def of_biases() -> Iterator[Mutation]:
    """Yield faults of biases by relative position."""
    plants: dict[str, tuple[str, Callable[[Any], None]]] = {
        "transposed": ("relative-transposed", _mapped(lambda d, r, n: (r, d))),
        "flipped": ("relative-flipped", _mapped(lambda d, r, n: (n - d, n - r))),
        "rows flipped": ("relative-rows-flipped", _mapped(lambda d, r, n: (n - d, r))),
        "columns flipped": ("relative-columns-flipped", _mapped(lambda d, r, n: (d, n - r))),
        "of keys to queries": ("relative-query-key", _index(lambda index, rows: index.T.contiguous())),
        "missing": ("relative-missing", _valued(lambda b, attn: b * 0)),
        "ahead of the scale": ("relative-scaled", _valued(lambda b, attn: b * attn.scale)),
        "of patches missing": ("relative-patches-missing", _valued(lambda b, attn: b - _without_class(b, attn))),
        "of the class token missing": ("relative-class-missing", _valued(_without_class)),
        "class rows exchanged": ("relative-class-exchanged", _named((1, 0, 2))),
        "class rows rolled": ("relative-class-rolled", _named((2, 0, 1))),
        "class rows rolled back": ("relative-class-rolled-back", _named((1, 2, 0))),
    }
    for name, (truth, plant) in plants.items():
        yield Mutation(f"biases {name}", (truth,), plant, _biased)
