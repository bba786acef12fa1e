"""What a timm VisionTransformer computes, from the arguments it is built with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vitconv.configs.activations import FROM_TIMM
from vitconv.configs.fields import Fields
from vitconv.configs.found import Found
from vitconv.layout.semantics import Semantics

# timm/layers/create_norm.py: by its word a norm always has eps 1e-6.
NORMS: Mapping[str, str] = {
    "layernorm": "layernorm",
    "layernormfp32": "layernorm",
    "rmsnorm": "rmsnorm",
    "rmsnormfp32": "rmsnorm",
}
_POOLS: Mapping[str, str] = {"token": "token", "avg": "avg", "map": "map", "": "none"}
_BLOCKS: Mapping[str, str] = {"Block": "pre", "ResPostBlock": "res-post", "ParallelThingsBlock": "pre"}
_MLPS = ("Mlp", "SwiGLU", "SwiGLUPacked")
_ATTENTIONS = ("Attention", "attn")


def facts_of(args: Mapping[str, Any], where: str) -> Found:
    """Return facts, sizes and refusals of the network that `args` (all of them, defaults included) build.

    Raises:
        BadFile: a value of the wrong kind.
    """
    fields = Fields(args, where)
    refusals: list[str] = []

    def word(key: str, table: Mapping[str, str]) -> str | None:
        value = str(args[key])
        if value not in table:
            refusals.append(f"{where}: {key} {value!r} has no counterpart here")
        return table.get(value)

    norm, eps = _norm(fields)
    if norm not in NORMS:
        refusals.append(f"{where}: norm_layer {norm!r} has no counterpart here")
    for key, plain in (("mlp_layer", _MLPS), ("attn_layer", _ATTENTIONS)):
        if args[key] not in plain:
            refusals.append(f"{where}: {key} {args[key]!r} has no counterpart here")
    if args["embed_norm_layer"] is not None:
        refusals.append(f"{where}: a norm inside the patch embedding (embed_norm_layer) has no counterpart here")
    pool = word("global_pool", _POOLS)
    if pool in ("avg", "map") and fields.flag("pool_include_prefix"):
        pool += "-prefix" if fields.flag("class_token") or fields.integer("reg_tokens", least=0) else ""
    width, heads, patch = fields.integer("embed_dim"), fields.integer("num_heads"), fields.pair("patch_size")
    if width % heads:
        raise fields.wrong("num_heads", f"a divisor of embed_dim {width}")
    # With dynamic_img_size it is still the size that the position table is for.
    image = fields.pair("img_size")
    grid = (image[0] // patch[0], image[1] // patch[1])
    final = fields.flag("final_norm")
    facts = Semantics(
        heads=heads,
        norm_placement=word("block_fn", _BLOCKS),
        norm_kind=NORMS.get(norm),
        norm_eps=eps,
        final_norm_eps=eps if final else None,
        embed_norm_eps=eps if fields.flag("pre_norm") else None,
        qk_norm_eps=eps if fields.flag("qk_norm") else None,
        activation=word("act_layer", FROM_TIMM),
        attention="softmax" if args["attn_layer"] in _ATTENTIONS else None,
        kv_normalised=True,
        pooling=pool,
        position="learned" if args["pos_embed"] == "learn" else "none",
        position_resize="bicubic-antialias" if args["pos_embed"] == "learn" else None,
        grid=grid,
        image_size=image,
    )
    return Found(facts, _sizes(fields, grid), refusals=tuple(refusals))


def _norm(fields: Fields) -> tuple[str, float]:
    value = fields.raw["norm_layer"]
    if value is None or value == "":
        return "layernorm", 1e-6
    if isinstance(value, str):
        return value.replace("_", "").lower(), 1e-6
    return str(value[0]), float(value[1])


def _sizes(fields: Fields, grid: tuple[int, int]) -> dict[str, int]:
    width, patch = fields.integer("embed_dim"), fields.pair("patch_size")
    hidden = int(width * fields.number("mlp_ratio"))
    sizes = {
        "d": width,
        "a": width,
        "m": hidden // 2 if fields.raw["mlp_layer"] == "SwiGLUPacked" else hidden,
        "i": fields.integer("depth"),
        "c": fields.integer("in_chans"),
        "p": patch[0],
        "q": patch[1],
    }
    if fields.raw["pos_embed"] == "learn":
        sizes["n"] = grid[0] * grid[1]
    classes, registers = fields.integer("num_classes", least=0), fields.integer("reg_tokens", least=0)
    return sizes | ({"o": classes} if classes else {}) | ({"r": registers} if registers else {})
