"""timm's plain vision families, one row each: their classes, their layouts, how positions enter.

Source: huggingface/pytorch-image-models, timm/models/{vision_transformer,deit,eva,beit,naflexvit}.py, 1.0.31.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from vitconv.errors import Refused
from vitconv.hosts.base.wide import Rebuild


@dataclass(frozen=True)
class Family:
    """One family.

    Attributes:
        modules: the files its classes are in.
        prefix: what the name of a class starts with.
        dialects: the layouts its networks can be in, the likeliest first.
        positions: facts of positions, grid and image size, of a live network.
        rebuild: makes anew the tables that it holds in float32 and does not store.
        axes: sizes that its tensors do not say, of a live network.
        choices: options of its layout that its tensors do not say, of a live network.
    """

    modules: tuple[str, ...]
    prefix: str
    dialects: tuple[str, ...]
    positions: Callable[[Any], dict[str, Any]]
    rebuild: Rebuild | None = None
    axes: Callable[[Any], dict[str, int]] = lambda _net: {}
    choices: Callable[[Any], dict[str, str]] = lambda _net: {}


def _fixed(net: Any) -> dict[str, Any]:
    return {
        "position": "none" if net.pos_embed is None else "learned",
        "grid": tuple(net.patch_embed.grid_size),
        "image_size": tuple(net.patch_embed.img_size),
    }


def _turning(net: Any) -> dict[str, Any]:
    facts = _fixed(net)
    return {**facts, **rotary(net.rope, facts["grid"])}


def _relative(net: Any) -> dict[str, Any]:
    own = getattr(net.blocks[0].attn, "relative_position_bias_table", None)
    return _fixed(net) | ({} if net.rel_pos_bias is None and own is None else {"position": "relative"})


def _flexible(net: Any) -> dict[str, Any]:
    """Return the facts of NaFlexVit's positions: of its table's own grid, or of one of 16 by 16 patches."""
    embeds = net.embeds
    grid = tuple(embeds.pos_embed_grid_size or (16, 16))
    return {
        "position": "learned" if embeds.pos_embed_type != "none" else "none",
        "grid": grid,
        "image_size": tuple(n * side for n, side in zip(grid, embeds.patch_size, strict=True)),
        **rotary(net.rope, grid),
    }


def rotary(rope: Any, grid: tuple[int, int]) -> dict[str, Any]:
    """Return the facts of rotary positions, of the kinds that have a counterpart: EVA-02's, DINOv3's, RoPE-ViT's.

    Raises:
        Refused: it turns queries and keys in another way.
    """
    if rope is None:
        return {}
    kinds = {
        "RotaryEmbeddingCat": "interleaved",
        "RotaryEmbeddingDinoV3": "half",
        "RotaryEmbeddingMixed": "interleaved",
    }
    layout, half = kinds.get(type(rope).__name__), getattr(rope, "rotate_half", False)
    if layout is None or half != (layout == "half"):
        raise Refused(
            f"timm's {type(rope).__name__} is not known here, only the rotary positions of EVA-02, DINOv3 and RoPE-ViT"
        )
    offset, rows_first = getattr(rope, "grid_offset", 0.0), rope.grid_indexing == "ij"
    if layout == "half" and not (rows_first and not offset):
        how = f"numbered {rope.grid_indexing} from {offset:g}"
        raise Refused(f"rotary positions of DINOv3's kind with places {how} have no counterpart here, only ij from 0")
    facts: dict[str, Any] = {"position": "rope", "rope_layout": layout, "rope_theta": float(rope.temperature)}
    facts["rope_order"] = "rows" if rows_first else "columns"
    if type(rope).__name__ != "RotaryEmbeddingCat":
        return facts
    reference = rope.ref_feat_shape or (grid if rows_first and not offset else None)
    return facts | {"rope_offset": offset} | ({} if reference is None else {"rope_reference": tuple(reference)})


def _beside_a_table(net: Any) -> dict[str, str]:
    own = type(net.blocks[0].attn).__name__ == "AttentionRope" and type(net.rope).__name__ == "RotaryEmbeddingCat"
    return {"attention": "AttentionRope+table"} if own and net.pos_embed is not None else {}


def _patch(net: Any) -> dict[str, int]:
    return dict(zip("pq", net.embeds.patch_size, strict=True))


def _tables_again(module: nn.Module) -> None:
    for m in module.modules():
        if type(m).__module__ == "timm.layers.pos_embed_sincos" and hasattr(m, "init_non_persistent_buffers"):
            m.init_non_persistent_buffers()


FAMILIES = (
    Family(("timm.models.vision_transformer", "timm.models.deit"), "VisionTransformer", ("timm",), _fixed),
    Family(("timm.models.eva",), "Eva", ("timm-eva", "timm"), _turning, _tables_again, choices=_beside_a_table),
    # With a table of positions alone the keys are those of an Eva, without biases those of a VisionTransformer.
    Family(("timm.models.beit",), "Beit", ("beit", "timm-eva", "timm"), _relative),
    Family(
        ("timm.models.naflexvit",), "NaFlexVit", ("timm-naflex", "timm-naflex-eva"), _flexible, _tables_again, _patch
    ),
)


def family_of(module: nn.Module) -> Family | None:
    """Return the family of a network, or None."""
    classes = type(module).__mro__
    return next(
        (f for f in FAMILIES if any(c.__module__ in f.modules and c.__name__.startswith(f.prefix) for c in classes)),
        None,
    )
