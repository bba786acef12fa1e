"""What the names of timm's VisionTransformer entrypoints stand for, so that timm need not be imported.

The table is made by tests/configs/make_timm_table.py out of the timm release that it names.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

# Defaults of VisionTransformer.__init__, timm/models/vision_transformer.py (1.0.31).
DEFAULTS: Mapping[str, Any] = MappingProxyType(
    {
        "class": "VisionTransformer",
        "img_size": 224,
        "patch_size": 16,
        "in_chans": 3,
        "num_classes": 1000,
        "global_pool": "token",
        "embed_dim": 768,
        "depth": 12,
        "num_heads": 12,
        "mlp_ratio": 4.0,
        "qkv_bias": True,
        "qk_norm": False,
        "scale_attn_norm": False,
        "scale_mlp_norm": False,
        "proj_bias": True,
        "init_values": None,
        "class_token": True,
        "pos_embed": "learn",
        "no_embed_class": False,
        "reg_tokens": 0,
        "pre_norm": False,
        "final_norm": True,
        "fc_norm": None,
        "pool_include_prefix": False,
        "dynamic_img_size": False,
        "norm_layer": ["layernorm", 1e-6],
        "embed_norm_layer": None,
        "act_layer": "gelu",
        "block_fn": "Block",
        "mlp_layer": "Mlp",
        "attn_layer": "Attention",
    }
)


@dataclass(frozen=True)
class Pretrained:
    """Preprocessing of one set of pretrained weights; `size` is (height, width), None where any size goes."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    classes: int
    size: tuple[int, int] | None


def release() -> str:
    """Return the timm release that the table was made from."""
    return str(_table()["timm"])


def models() -> tuple[str, ...]:
    """Return the names of all entrypoints in the table."""
    return tuple(_table()["models"])


def arguments(name: str) -> dict[str, Any] | None:
    """Return every argument with which an entrypoint builds its VisionTransformer, or None for other names.

    Norms are [name, eps]; layers and activations are words.
    """
    row = _table()["models"].get(name)
    return None if row is None else {**DEFAULTS, **{k: v for k, v in row.items() if k != "tags"}}


def pretrained(name: str, tag: str = "") -> Pretrained | None:
    """Return the preprocessing of the weights `name.tag`; without a tag, of those the bare name stands for."""
    row = _table()["models"].get(name)
    if row is None or not row["tags"]:
        return None
    if tag and tag not in row["tags"]:
        return None
    label, classes, size = row["tags"][tag or next(iter(row["tags"]))]
    mean, std = _table()["statistics"][label]
    return Pretrained(tuple(mean), tuple(std), classes, tuple(size) if size else None)


@cache
def _table() -> Mapping[str, Any]:
    loaded: dict[str, Any] = json.loads(Path(__file__).with_name("timm_models.json").read_text(encoding="utf-8"))
    return MappingProxyType(loaded)
