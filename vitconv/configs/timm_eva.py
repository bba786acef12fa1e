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
        "rope_type": "cat",
        "rope_grid_offset": 0.0,
        "rope_grid_indexing": "ij",
        "rope_temperature": 10000.0,
        "rope_rotate_half": False,
        "use_post_norm": False,
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
    rope = _rope(fields, grid, refusals) if fields.flag("use_rot_pos_emb") else {}
    table = fields.flag("use_abs_pos_emb")
    facts = Semantics(
        heads=heads,
        norm_placement="res-post" if fields.flag("use_post_norm") else "pre",
        norm_kind=NORMS.get(norm),
        norm_eps=eps,
        final_norm_eps=eps,
        activation="silu" if fields.flag("swiglu_mlp") else "gelu",
        attention="softmax",
        kv_normalised=True,
        pooling=_POOLS.get(fields.text("global_pool")),
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
    return Found(facts, sizes, refusals=tuple(refusals))


def _norm(fields: Fields) -> tuple[str, float]:
    value = fields.raw["norm_layer"]
    # By its word a norm always has eps 1e-6.
    return (value.replace("_", "").lower(), 1e-6) if isinstance(value, str) else (str(value[0]), float(value[1]))


def _rope(fields: Fields, grid: tuple[int, int], refusals: list[str]) -> dict[str, Any]:
    """Return the facts of rotary positions, of the kinds that have a counterpart: EVA-02's and DINOv3's."""
    kind, half = fields.text("rope_type"), fields.flag("rope_rotate_half")
    facts: dict[str, Any] = {"position": "rope", "rope_theta": fields.number("rope_temperature")}
    plain = fields.text("rope_grid_indexing") == "ij" and fields.number("rope_grid_offset") == 0
    if not plain or (kind, half) not in (("cat", False), ("dinov3", True)):
        how = f"rope_type {kind!r}" + ("" if plain else f" with places numbered {fields.text('rope_grid_indexing')}")
        refusals.append(f"{fields.where}: rotary positions of {how} have no counterpart here")
        return facts
    if half:
        return {**facts, "rope_layout": "half"}
    reference = fields.pair("ref_feat_shape") if "ref_feat_shape" in fields else grid
    return {**facts, "rope_layout": "interleaved", "rope_reference": reference}


@cache
def _table() -> Mapping[str, Any]:
    loaded: dict[str, Any] = json.loads(Path(__file__).with_name("timm_eva.json").read_text(encoding="utf-8"))
    return MappingProxyType(loaded)
