"""timm's default: normal .02, whose cut-offs at the values -2 and 2 cut nothing"""

from __future__ import annotations

from vitconv.inits.base.distribution import truncated_absolute
from vitconv.inits.base.placement import FLAT
from vitconv.inits.base.scheme import Scheme
from vitconv.inits.base.timm_modes import plain

SCHEME = Scheme(
    name="timm",
    title="timm, weight_init=''",
    source="huggingface/pytorch-image-models, timm/models/vision_transformer.py, init_weights_vit_timm, 1.0.31",
    table=plain(truncated_absolute(0.02)),
    fits=FLAT,
    notes=("the bias of the patch projection is left as torch's constructor drew it: random, not 0",),
)
