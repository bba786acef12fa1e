"""What a timm NaFlexVit computes, by the name of its entrypoint and the arguments that a folder adds.

The table is made by tests/configs/make_timm_naflex_table.py out of the timm release that it names.
Source: huggingface/pytorch-image-models timm/models/naflexvit.py, 1.0.31.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from vitconv.configs.activations import FROM_TIMM
from vitconv.configs.fields import Fields
from vitconv.configs.found import Found
from vitconv.configs.timm_eva import pool_heads, rope_facts
from vitconv.configs.timm_facts import NORMS
from vitconv.layout.semantics import Semantics

# Defaults of NaFlexVitCfg and NaFlexVit.__init__, of those that decide the function or a size.
DEFAULTS: Mapping[str, Any] = MappingProxyType(
    {
        "in_chans": 3,
        "num_classes": 1000,
        "img_size": None,
        "patch_size": 16,
        "embed_dim": 768,
        "depth": 12,
        "num_heads": 12,
        "mlp_ratio": 4.0,
        "num_kv_heads": None,
        "qk_norm": False,
        "attn_gated": False,
        "class_token": False,
        "reg_tokens": 0,
        "pos_embed": "learned",
        "pos_embed_grid_size": [16, 16],
        "pos_embed_interp_mode": "bicubic",
        "pos_embed_antialias": True,
        "pos_embed_align_corners": False,
        "pos_embed_ar_preserving": False,
        "rope_type": "",
        "rope_temperature": 10000.0,
        "rope_ref_feat_shape": None,
        "rope_grid_offset": 0.0,
        "rope_grid_indexing": "ij",
        "rope_rotate_half": False,
        "patchify_channels_last": True,
        "pre_norm": False,
        "final_norm": True,
        "global_pool": "map",
        "pool_include_prefix": False,
        "attn_pool_num_heads": None,
        "embed_proj_type": "linear",
        "norm_layer": None,
        "act_layer": None,
        "block_fn": None,
        "mlp_layer": None,
        "attn_layer": None,
        "attn_type": "standard",
        "swiglu_mlp": False,
        "attn_only_layer_scale": False,
    }
)
_POOLS: Mapping[str, str] = {"token": "token", "avg": "avg", "map": "map", "": "none"}


def arguments(name: str) -> dict[str, Any] | None:
    """Return the arguments with which an entrypoint builds its NaFlexVit, or None for other names."""
    row = _table()["models"].get(name)
    return None if row is None else {**DEFAULTS, **row}


def facts_of(given: Mapping[str, Any], where: str) -> Found:
    """Return facts, sizes and refusals of the NaFlexVit that `given` (all arguments, defaults included) builds.

    Raises:
        BadFile: a value of the wrong kind.
    """
    fields = Fields(given, where)
    refusals = [f"{where}: {what} has no counterpart here" for what in _foreign(given)]
    norm, eps = _norm(given["norm_layer"])
    if norm not in NORMS:
        refusals.append(f"{where}: norm_layer {norm!r} has no counterpart here")
    pool = _POOLS.get(fields.text("global_pool"))
    if pool in ("avg", "map") and fields.flag("pool_include_prefix"):
        pool += "-prefix" if fields.flag("class_token") or fields.integer("reg_tokens", least=0) else ""
    patch, table = fields.pair("patch_size"), given["pos_embed"] in ("learned", "factorized")
    image = fields.pair("img_size") if given["img_size"] is not None else None
    grid = fields.pair("pos_embed_grid_size") if given["pos_embed_grid_size"] is not None else None
    if grid is None and image is not None:
        grid = (image[0] // patch[0], image[1] // patch[1])
    if given["pos_embed"] == "factorized" and fields.flag("pos_embed_ar_preserving") and grid and grid[0] != grid[1]:
        refusals.append(f"{where}: a factorised table of {grid[0]}x{grid[1]} is resized even at its own size")
    rope = (
        rope_facts(fields, None, "rope_ref_feat_shape", refusals)
        if given["rope_type"] not in (None, "", "none")
        else {}
    )
    facts = Semantics(
        heads=fields.integer("num_heads"),
        norm_placement={None: "pre", "Block": "pre", "ResPostBlock": "res-post"}.get(given["block_fn"]),
        norm_kind=NORMS.get(norm),
        norm_eps=eps,
        final_norm_eps=eps if fields.flag("final_norm") or pool == "map" else None,
        embed_norm_eps=eps if fields.flag("pre_norm") else None,
        qk_norm_eps=eps if fields.flag("qk_norm") else None,
        activation="silu" if fields.flag("swiglu_mlp") else FROM_TIMM.get(given["act_layer"] or "gelu"),
        attention="softmax",
        kv_normalised=True,
        pooling=pool,
        pool_heads=pool_heads(fields, fields.integer("num_heads")),
        position="learned" if table else "none",
        position_resize=_resize(given) if given["pos_embed"] == "learned" else None,
        grid=grid,
        image_size=(grid[0] * patch[0], grid[1] * patch[1]) if grid else None,
    ).replaced(rope)
    last = given["patchify_channels_last"] is not False or given["embed_proj_type"] != "linear"
    choices = {} if last else {"stem": "linear-channels-first"}
    return Found(facts, _sizes(fields, grid if table else None), refusals=tuple(refusals), choices=choices)


def _norm(value: Any) -> tuple[str, float]:
    # By its word a norm always has eps 1e-6.
    return ("layernorm" if value in (None, "") else str(value).replace("_", "").lower()), 1e-6


def _foreign(given: Mapping[str, Any]) -> list[str]:
    """Return what is of a kind that no layout here has, in words."""
    wrong = [f"{key} {given[key]!r}" for key in ("num_kv_heads",) if given[key] is not None]
    wrong += [key for key in ("attn_gated", "attn_only_layer_scale") if given[key]]
    wrong += [f"attn_layer {given['attn_layer']!r}"] if given["attn_layer"] not in (None, "attn", "Attention") else []
    wrong += [f"block_fn {given['block_fn']!r}"] if given["block_fn"] not in (None, "Block", "ResPostBlock") else []
    wrong += [f"global_pool {given['global_pool']!r}"] if given["global_pool"] not in _POOLS else []
    act = given["act_layer"] or "gelu"
    return wrong + ([f"act_layer {act!r}"] if act not in FROM_TIMM else [])


def _resize(given: Mapping[str, Any]) -> str | None:
    """Return the rule by which the table is resized; one that keeps the aspect ratio has no name here."""
    mode = str(given["pos_embed_interp_mode"])
    if given["pos_embed_ar_preserving"] or (given["pos_embed_align_corners"] and given["pos_embed_antialias"]):
        return None
    rule = mode + ("-antialias" if given["pos_embed_antialias"] else "")
    rule += "-corners" if given["pos_embed_align_corners"] else ""
    return rule if rule in ("bicubic", "bicubic-antialias", "bilinear", "bilinear-antialias") else None


def _sizes(fields: Fields, grid: tuple[int, int] | None) -> dict[str, int]:
    width, patch = fields.integer("embed_dim"), fields.pair("patch_size")
    sizes = {
        "d": width,
        "a": width,
        "i": fields.integer("depth"),
        "c": fields.integer("in_chans"),
        "p": patch[0],
        "q": patch[1],
        **(dict(zip(("rows", "columns"), grid, strict=True)) if grid else {}),
    }
    classes, registers = fields.integer("num_classes", least=0), fields.integer("reg_tokens", least=0)
    return sizes | ({"o": classes} if classes else {}) | ({"r": registers} if registers else {})


@cache
def _table() -> Mapping[str, Any]:
    loaded: dict[str, Any] = json.loads(Path(__file__).with_name("timm_naflex.json").read_text(encoding="utf-8"))
    return MappingProxyType(loaded)
