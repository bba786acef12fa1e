"""What a timm Eva computes, by the name of its entrypoint and the arguments that a folder adds.

The table is made by tests/configs/make_timm_eva_table.py out of the timm release that it names.
Source: huggingface/pytorch-image-models timm/models/eva.py and timm/layers/pos_embed_sincos.py, 1.0.31.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from vitconv.configs.fields import Fields
from vitconv.configs.found import Found
from vitconv.configs.timm_facts import NORMS
from vitconv.layout.semantics import Semantics

# Defaults of Eva.__init__, of those that decide the function or a size.
DEFAULTS: Mapping[str, Any] = MappingProxyType(
    {
        "img_size": 224,
        "patch_size": 16,
        "in_chans": 3,
        "num_classes": 1000,
        "global_pool": "avg",
        "embed_dim": 768,
        "depth": 12,
        "num_heads": 12,
        "num_kv_heads": None,
        "swiglu_mlp": False,
        "norm_layer": ["layernorm", 1e-6],
        "num_reg_tokens": 0,
        "use_abs_pos_emb": True,
        "use_rot_pos_emb": False,
        "attn_type": "eva",
        "rope_type": "cat",
        "rope_grid_offset": 0.0,
        "rope_grid_indexing": "ij",
        "rope_temperature": 10000.0,
        "rope_rotate_half": False,
        "use_post_norm": False,
        "class_token": True,
        "use_pre_transformer_norm": False,
        "qk_norm": False,
        "attn_pool_num_heads": None,
        "ref_feat_shape": None,
    }
)
_POOLS: Mapping[str, str] = {"token": "token", "avg": "avg", "map": "map", "": "none"}


def models() -> tuple[str, ...]:
    """Return the names of all entrypoints in the table."""
    return tuple(_table()["models"])


def arguments(name: str) -> dict[str, Any] | None:
    """Return the arguments with which an entrypoint builds its Eva, or None for other names."""
    row = _table()["models"].get(name)
    return None if row is None else {**DEFAULTS, **row}


def facts_of(args: Mapping[str, Any], where: str) -> Found:
    """Return facts, sizes and refusals of the Eva that `args` (all of them, defaults included) build.

    Raises:
        BadFile: a value of the wrong kind.
    """
    fields = Fields({k: DEFAULTS.get(k) if v is None else v for k, v in args.items()}, where)
    refusals: list[str] = []
    heads, image, patch = fields.integer("num_heads"), fields.pair("img_size"), fields.pair("patch_size")
    grid = (image[0] // patch[0], image[1] // patch[1])
    norm, eps = _norm(fields)
    if norm not in NORMS:
        refusals.append(f"{where}: norm_layer {norm!r} has no counterpart here")
    if "num_kv_heads" in fields:
        refusals.append(f"{where}: fewer heads of keys and values than of queries have no counterpart here")
    rope = rope_facts(fields, grid, "ref_feat_shape", refusals) if fields.flag("use_rot_pos_emb") else {}
    table, pool = fields.flag("use_abs_pos_emb"), _POOLS.get(fields.text("global_pool"))
    mapped = pool == "map"
    # It attends to all tokens.
    if mapped and (fields.flag("class_token") or fields.integer("num_reg_tokens", least=0)):
        pool = "map-prefix"
    facts = Semantics(
        heads=heads,
        norm_placement="res-post" if fields.flag("use_post_norm") else "pre",
        norm_kind=NORMS.get(norm),
        norm_eps=eps,
        final_norm_eps=eps,
        embed_norm_eps=eps if fields.flag("use_pre_transformer_norm") else None,
        qk_norm_eps=eps if fields.flag("qk_norm") else None,
        activation="silu" if fields.flag("swiglu_mlp") else "gelu",
        attention="softmax",
        kv_normalised=True,
        pooling=pool,
        pool_heads=pool_heads(fields, heads) if mapped else None,
        position="rope" if rope else "learned" if table else "none",
        position_resize="bicubic-antialias" if table else None,
        grid=grid,
        image_size=image,
    ).replaced(rope)
    sizes = {
        "d": fields.integer("embed_dim"),
        "a": fields.integer("embed_dim"),
        "i": fields.integer("depth"),
        "c": fields.integer("in_chans"),
        "p": patch[0],
        "q": patch[1],
        **({"n": grid[0] * grid[1]} if table else {}),
    }
    classes, registers = fields.integer("num_classes", least=0), fields.integer("num_reg_tokens", least=0)
    sizes |= ({"o": classes} if classes else {}) | ({"r": registers} if registers else {})
    # Beside a table no key tells rotary positions of timm's AttentionRope from a DeiT-III.
    own = table and rope and fields.text("attn_type") == "rope" and fields.text("rope_type") == "cat"
    choices = {"attention": "AttentionRope+table"} if own else {}
    return Found(facts, sizes, refusals=tuple(refusals), choices=choices, dialect="timm-eva" if rope else "")


def _norm(fields: Fields) -> tuple[str, float]:
    value = fields.raw["norm_layer"]
    # By its word a norm always has eps 1e-6.
    return (value.replace("_", "").lower(), 1e-6) if isinstance(value, str) else (str(value[0]), float(value[1]))


def pool_heads(fields: Fields, heads: int) -> int | None:
    """Return the heads of an attention-pooling head that has other than the blocks."""
    own = fields.integer("attn_pool_num_heads") if "attn_pool_num_heads" in fields else heads
    return None if own == heads else own


def rope_facts(fields: Fields, grid: tuple[int, int] | None, reference: str, refusals: list[str]) -> dict[str, Any]:
    """Return the facts of rotary positions, of the kinds that have a counterpart: EVA-02's, DINOv3's, RoPE-ViT's.

    `reference` is the argument that has the grid which places are numbered to.
    """
    kind, half = fields.text("rope_type"), fields.flag("rope_rotate_half")
    order, offset = fields.text("rope_grid_indexing"), fields.number("rope_grid_offset")
    facts: dict[str, Any] = {"position": "rope", "rope_theta": fields.number("rope_temperature")}
    plain = order == "ij" and offset == 0
    kinds = {("cat", False): "cat", ("axial", False): "cat", ("mixed", False): "mixed", ("dinov3", True): "dinov3"}
    known = kinds.get((kind, half))
    if known is None or order not in ("ij", "xy") or (known == "dinov3" and not plain):
        how = f"rope_type {kind!r}" + ("" if plain else f" with places numbered {order} from {offset:g}")
        refusals.append(f"{fields.where}: rotary positions of {how} have no counterpart here")
        return facts
    if known == "dinov3":
        return {**facts, "rope_layout": "half", "rope_order": "rows"}
    facts |= {"rope_layout": "interleaved", "rope_order": "rows" if order == "ij" else "columns"}
    if known == "mixed":
        return facts
    # EVA-02's code numbers places as in one grid always; timm's scales them where it is told of a grid.
    told = fields.pair(reference) if reference in fields else grid if plain else None
    return facts | {"rope_offset": offset} | ({} if told is None else {"rope_reference": told})


@cache
def _table() -> Mapping[str, Any]:
    loaded: dict[str, Any] = json.loads(Path(__file__).with_name("timm_eva.json").read_text(encoding="utf-8"))
    return MappingProxyType(loaded)
