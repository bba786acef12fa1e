"""MAE: Xavier on everything, fixed sine positions"""

from __future__ import annotations

from vitconv.inits.base.distribution import normal, truncated_absolute, xavier_uniform
from vitconv.inits.base.fans import flat_fans
from vitconv.inits.base.placement import FLAT
from vitconv.inits.base.roles import (
    ONES,
    QKV,
    ZEROS,
    default,
    fused_xavier,
    sincos,
    table,
    weights,
    xavier,
)
from vitconv.inits.base.scheme import Scheme

SCHEME = Scheme(
    name="mae",
    title="MAE",
    source="facebookresearch/mae, models_mae.py and main_finetune.py, efb2a80",
    table=table(
        linear=xavier,
        patch=lambda site: xavier_uniform(flat_fans(site.shape)),
        patch_bias=default,
        pos=sincos("mae"),
        cls=normal(0.02),
        mask=normal(0.02),
        layer_scale=ONES,
        head=truncated_absolute(2e-5),
        more={"embed.pos_cls": ZEROS, "embed.pos_dist": ZEROS, "embed.pos_reg": ZEROS} | weights(QKV, fused_xavier),
    ),
    fits=FLAT,
    notes=("the position table is fixed in pre-training; the head's 2e-5 is the one of fine-tuning",),
    quirk="q, k and v have an effective gain of sqrt(1/2)",
)
