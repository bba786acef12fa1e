"""DINOv2: normal .02, LayerScale at 1e-5"""

from __future__ import annotations

from vitconv.inits.base.distribution import constant, truncated_absolute
from vitconv.inits.base.placement import FLAT
from vitconv.inits.base.roles import NEAR_ZERO, default, table
from vitconv.inits.base.scheme import Scheme

_USUAL = truncated_absolute(0.02)

SCHEME = Scheme(
    name="dinov2",
    title="DINOv2",
    source="facebookresearch/dinov2, dinov2/models/vision_transformer.py, b8931f7",
    table=table(
        linear=_USUAL,
        patch=default,
        patch_bias=default,
        pos=_USUAL,
        cls=NEAR_ZERO,
        layer_scale=constant(1e-5),
    ),
    fits=FLAT,
    notes=("transformers builds the same network with LayerScale 1.0, a hundred thousand times as much",),
)
