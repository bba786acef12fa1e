"""Read config.json of transformers' other plain vision transformers, and what each of them takes when it is silent.

Source: huggingface/transformers, models/{dinov2,dinov2_with_registers,dinov3_vit,vit_mae,vit_msn,beit,ijepa,clip,
siglip,siglip2}, configuration_*.py, 5.24.0 (the same defaults in 4.57.3).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from math import isqrt
from types import MappingProxyType
from typing import Any

from vitconv.configs.activations import FROM_HF
from vitconv.configs.fields import Fields
from vitconv.configs.found import Found
from vitconv.layout.semantics import Semantics
from vitconv.record import dataclass


@dataclass(frozen=True)
class Kind:
    """One model type: its silent values where they differ from ViT's, and the facts that its code fixes."""

    width: int = 768
    heads: int = 12
    patch: int = 16
    eps: float = 1e-12
    act: str = "gelu"
    position: str = "learned"
    resize: str | None = "bicubic"
    pooling: str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


_ROPE = {"rope_layout": "half"}
KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "dinov2": Kind(patch=14, eps=1e-6, pooling="token"),
        "dinov2_with_registers": Kind(eps=1e-6, resize="bicubic-antialias", pooling="token"),
        "dinov3_vit": Kind(width=384, heads=6, eps=1e-5, position="rope", resize=None, pooling="token", facts=_ROPE),
        "vit_mae": Kind(position="sincos", pooling="none"),
        "vit_msn": Kind(eps=1e-6, pooling="token"),
        "beit": Kind(position="relative", resize=None),
        "ijepa": Kind(position="sincos"),
        "clip_vision_model": Kind(patch=32, eps=1e-5, act="quick_gelu", pooling="token"),
        "siglip_vision_model": Kind(eps=1e-6, act="gelu_pytorch_tanh"),
        "siglip2_vision_model": Kind(eps=1e-6, act="gelu_pytorch_tanh", resize="bilinear-antialias"),
    }
)
# Two towers: the vision tower's configuration is inside.
_INSIDE = {"clip": "clip_vision_model", "siglip": "siglip_vision_model", "siglip2": "siglip2_vision_model"}


def tower(raw: Any, where: str) -> tuple[str, Fields]:
    """Return the model type and the fields of the vision network that a configuration describes."""
    fields = Fields(raw, where)
    kind = fields.text("model_type")
    if kind in _INSIDE:
        return _INSIDE[kind], fields.inner("vision_config")
    return kind, fields


def read(raw: Any, where: str) -> Found:
    """Read the facts of one of `KINDS`.

    Raises:
        BadFile: a value of the wrong kind.
    """
    name, fields = tower(raw, where)
    kind = KINDS[name]
    width, heads = fields.integer("hidden_size", kind.width), fields.integer("num_attention_heads", kind.heads)
    if width % heads:
        raise fields.wrong("num_attention_heads", f"a divisor of hidden_size {width}")
    patch = fields.pair("patch_size", kind.patch)
    grid, image = _grid(name, fields, patch)
    eps = fields.number("layer_norm_eps", kind.eps, least=0.0)
    gated = name.startswith("dinov2") and fields.flag("use_swiglu_ffn", False)
    act = "silu" if gated else fields.text("hidden_act", kind.act)
    silent = {"layer_norm_eps": eps, "hidden_act": act, "num_attention_heads": heads}
    notes = [
        f"{where}: {key} is not stated; transformers then takes {v}" for key, v in silent.items() if key not in fields
    ]
    pooling, position = _pooling(name, fields, kind), kind.position
    if name == "beit" and not _relative(fields):
        position = "learned" if fields.flag("use_absolute_position_embeddings", False) else "none"
    facts = Semantics(
        heads=heads,
        norm_placement="pre",
        norm_kind="layernorm",
        norm_eps=eps,
        final_norm_eps=eps,
        embed_norm_eps=eps if name == "clip_vision_model" else None,
        activation=FROM_HF.get(act),
        attention="softmax",
        kv_normalised=True,
        pooling=pooling,
        position=position,
        position_resize=kind.resize,
        grid=grid,
        image_size=image,
    ).replaced(kind.facts)
    if name == "dinov3_vit":
        facts = facts.replaced({"rope_theta": _theta(fields)})
    if name == "vit_mae":
        facts = facts.replaced({"decoder_heads": fields.integer("decoder_num_attention_heads", 16)})
    sizes = {
        "d": width,
        "a": width,
        "i": fields.integer("num_hidden_layers", 12),
        "c": fields.integer("num_channels", 3),
        "p": patch[0],
        "q": patch[1],
    }
    if name.startswith("dinov2"):
        sizes["m"] = hidden(width, fields.number("mlp_ratio", 4), gated=gated)
    else:
        sizes["m"] = fields.integer("intermediate_size", 1536 if name == "dinov3_vit" else 3072)
    if position in ("learned", "sincos"):
        sizes["n"] = grid[0] * grid[1]
    if name in ("dinov2_with_registers", "dinov3_vit"):
        sizes["r"] = fields.integer("num_register_tokens", 0 if name == "dinov3_vit" else 4, least=0)
    refusals = () if act in FROM_HF else (f"{where}: hidden_act {act!r} has no name here",)
    extra = {"architectures": tuple(map(str, fields.raw.get("architectures") or []))}
    return Found(facts, sizes, extra, (f"{where} (transformers {name})",), tuple(notes), refusals)


def hidden(width: int, ratio: float, *, gated: bool) -> int:
    """Return the MLP width of DINOv2: two thirds when gated, rounded up to a multiple of eight."""
    wide = int(width * ratio)
    return (int(wide * 2 / 3) + 7) // 8 * 8 if gated else wide


def _grid(name: str, fields: Fields, patch: tuple[int, int]) -> tuple[tuple[int, int], tuple[int, int]]:
    if name == "siglip2_vision_model":
        # The table is that of a square image; the images may be of any shape.
        side = isqrt(fields.integer("num_patches", 256))
        return (side, side), (side * patch[0], side * patch[1])
    image = fields.pair("image_size", 224)
    return (image[0] // patch[0], image[1] // patch[1]), image


def _pooling(name: str, fields: Fields, kind: Kind) -> str | None:
    if name.startswith("siglip"):
        return "map" if fields.flag("vision_use_head", True) else "none"
    named = [str(x) for x in fields.raw.get("architectures") or []]
    if any("ForMaskedImageModeling" in x for x in named):
        return "none"
    if name == "beit":
        return "avg" if fields.flag("use_mean_pooling", True) else "token"
    if name == "ijepa" and named:
        return "avg" if any("Classification" in x for x in named) else "none"
    return kind.pooling


def _relative(fields: Fields) -> bool:
    keys = ("use_relative_position_bias", "use_shared_relative_position_bias")
    return any(fields.flag(key, False) for key in keys)


def _theta(fields: Fields) -> float:
    # 5.x keeps it inside a mapping of its own when it is not the default.
    return fields.inner("rope_parameters").number("rope_theta", fields.number("rope_theta", 100.0))
