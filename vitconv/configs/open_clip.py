"""Read open_clip_config.json, and the model configurations that open_clip's names stand for.

Source: mlfoundations/open_clip, src/open_clip/model.py (CLIPVisionCfg, _build_vision_tower) and factory.py, 3.3.0.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from vitconv.configs.fields import Fields
from vitconv.configs.found import Found
from vitconv.layout.semantics import Semantics

# Defaults of CLIPVisionCfg that decide the function or a size.
DEFAULTS: Mapping[str, Any] = {
    "layers": 12, "width": 768, "head_width": 64, "patch_size": 16, "image_size": 224, "no_ln_pre": False,
    "pos_embed_type": "learnable", "final_ln_after_pool": False, "pool_type": "tok", "attentional_pool": False,
    "attn_pooler_heads": 8,
    "patch_dropout": 0.0, "qk_norm": False, "timm_pool": "avg",
}  # fmt: skip
_POOLS = {"tok": "token", "avg": "avg", "none": "none"}
# What the tower computes by them has no place in another layout.
_FOREIGN = ("scaled_cosine_attn", "scale_heads", "scale_attn")


def accepts(raw: Any) -> bool:
    """Return True for open_clip_config.json, and for a model configuration alone."""
    model = raw.get("model_cfg", raw) if isinstance(raw, Mapping) else None
    return isinstance(model, Mapping) and isinstance(model.get("vision_cfg"), Mapping) and "embed_dim" in model


def read(raw: Any, where: str) -> Found:
    """Read the facts of the vision tower.

    Raises:
        BadFile: a value of the wrong kind.
    """
    whole = Fields(raw, where)
    model = whole.inner("model_cfg") if "model_cfg" in whole else whole
    vision = Fields({**DEFAULTS, **model.inner("vision_cfg").raw}, where)
    pre = whole.inner("preprocess_cfg") if "preprocess_cfg" in whole else Fields({}, where)
    image = Semantics(
        mean=pre.numbers("mean") if "mean" in pre else None, std=pre.numbers("std") if "std" in pre else None
    )
    if vision.raw.get("timm_model_name"):
        found = _timm(vision, where)
    else:
        found = _own(vision, quick=bool(model.raw.get("quick_gelu")), classes=model.integer("embed_dim"))
    sources = (f"{where} (open_clip)",)
    return dataclasses.replace(found, facts=found.facts.filled(image), sources=sources)


def _own(vision: Fields, *, quick: bool, classes: int) -> Found:
    where, raw = vision.where, vision.raw
    if isinstance(raw["layers"], (list, tuple)):
        return Found(refusals=(f"{where}: the tower is a ResNet, not a vision transformer",))
    refusals = [f"{where}: {name} has no counterpart here" for name in _FOREIGN if raw.get(name)]
    width, patch, size = vision.integer("width"), vision.pair("patch_size"), vision.pair("image_size")
    eps = float((raw.get("norm_kwargs") or {}).get("eps", 1e-5))
    grid = (size[0] // patch[0], size[1] // patch[1])
    coca = bool(raw["attentional_pool"])
    if raw["attentional_pool"] in ("parallel", "cascade"):
        refusals.append(f"{where}: attentional_pool={raw['attentional_pool']} has two poolers, of which one is carried")
    pooling = _POOLS.get(vision.text("pool_type"))
    after = vision.flag("final_ln_after_pool") and pooling == "avg" and not coca
    facts = Semantics(
        heads=width // vision.integer("head_width"),
        norm_placement="pre",
        norm_kind="layernorm",
        norm_eps=eps,
        final_norm_eps=eps,
        embed_norm_eps=None if vision.flag("no_ln_pre") else eps,
        qk_norm_eps=eps if vision.flag("qk_norm") else None,
        activation=_activation(raw.get("act_kwargs") or {}, quick=quick),
        attention="softmax",
        kv_normalised=True,
        pooling=pooling,
        pool_heads=vision.integer("attn_pooler_heads") if coca else None,
        position="sincos" if raw["pos_embed_type"] == "sin_cos_2d" else "learned",
        position_resize="bicubic-antialias",
        grid=grid,
        image_size=size,
    )
    sizes = {"d": width, "i": vision.integer("layers"), "p": patch[0], "q": patch[1], "n": grid[0] * grid[1]}
    if not coca:
        sizes["o"] = classes
    notes = []
    if vision.number("patch_dropout") > 0:
        notes.append(f"{where}: patch_dropout is of training only; an evaluated tower sees every patch")
    choices = {"last_norm": "after-pooling"} if after else {}
    return Found(facts, sizes, notes=tuple(notes), refusals=tuple(refusals), choices=choices)


def _activation(given: Mapping[str, Any], *, quick: bool) -> str:
    if quick:
        return "quick_gelu"
    return "gelu_tanh" if given.get("approximate") == "tanh" else "gelu"


def _timm(vision: Fields, where: str) -> Found:
    """Return the facts of a tower from timm, by its name; open_clip gives it the pooling."""
    from vitconv.configs.timm import built

    size = vision.pair("image_size")
    name = vision.text("timm_model_name").partition(".")[0]
    given: dict[str, Any] = {"img_size": list(size)}
    if vision.raw.get("timm_pool"):
        given["global_pool"] = vision.raw["timm_pool"]
    return built(name, given, where, where)
