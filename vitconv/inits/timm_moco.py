"""timm's moco mode: Xavier, with q, k and v each by itself"""

from __future__ import annotations

from vitconv.inits.base.placement import FLAT
from vitconv.inits.base.scheme import Scheme
from vitconv.inits.base.timm_modes import moco

SCHEME = Scheme(
    name="timm-moco",
    title="timm, weight_init='moco'",
    source="huggingface/pytorch-image-models, timm/models/vision_transformer.py, 1.0.31, init_weights_vit_moco",
    table=moco(),
    fits=FLAT,
    notes=("the patch projection stays at torch's default; MoCo v3's own rule for it is in xformers-moco-paper",),
)
