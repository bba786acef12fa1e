"""torch's own constructors: uniform by fan-in, biases too"""

from __future__ import annotations

from vitconv.inits.base.distribution import normal
from vitconv.inits.base.placement import FLAT
from vitconv.inits.base.roles import NEAR_ZERO, default, table
from vitconv.inits.base.scheme import Scheme
from vitconv.inits.base.timm_modes import LAYER_SCALE

SCHEME = Scheme(
    name="torch",
    title="torch defaults; tokens and positions as timm's weight_init='reset'",
    source="pytorch/pytorch, torch/nn/modules/linear.py and conv.py (reset_parameters); timm 1.0.31, mode reset",
    table=table(
        linear=default,
        bias=default,
        patch=default,
        patch_bias=default,
        pos=normal(0.02),
        cls=NEAR_ZERO,
        dist=normal(0.02),
        layer_scale=LAYER_SCALE,
    ),
    fits=FLAT,
)
