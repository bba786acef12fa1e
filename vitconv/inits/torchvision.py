"""torchvision's VisionTransformer: packed Xavier for q, k and v, zero head"""

from __future__ import annotations

import math

from vitconv.inits.base.architecture import Site
from vitconv.inits.base.distribution import Distribution, truncated_absolute
from vitconv.inits.base.placement import FLAT
from vitconv.inits.base.roles import (
    NEAR_ZERO,
    ONES,
    QKV,
    ZEROS,
    Value,
    default,
    fused_xavier,
    normal,
    table,
    weights,
    xavier,
)
from vitconv.inits.base.scheme import Scheme


def _patch(site: Site) -> Distribution:
    return truncated_absolute(math.prod(site.shape[1:]) ** -0.5)


def _pooler(site: Site) -> Distribution:
    return truncated_absolute(site.shape[1] ** -0.5)


_OWN: dict[str, Value] = {"attn.out.weight": default, "pool.dense.weight": _pooler}

SCHEME = Scheme(
    name="torchvision",
    title="torchvision's VisionTransformer",
    source="pytorch/vision, torchvision/models/vision_transformer.py; pytorch/pytorch, nn.MultiheadAttention",
    table=table(
        linear=xavier,
        mlp_bias=NEAR_ZERO,
        patch=_patch,
        pos=normal(0.02),
        cls=ZEROS,
        layer_scale=ONES,
        head=ZEROS,
        more=_OWN | weights(QKV, fused_xavier),
    ),
    fits=FLAT,
    quirk="q, k and v have an effective gain of sqrt(1/2), the output projection stays at torch's default",
)
