"""timm's default with the cut that its name promises: at 2 sigma, true std .0176"""

from __future__ import annotations

from vitconv.inits.base.distribution import truncated_sigma
from vitconv.inits.base.placement import FLAT
from vitconv.inits.base.scheme import Scheme
from vitconv.inits.base.timm_modes import plain

SCHEME = Scheme(
    name="timm-2sigma",
    title="timm's default, really cut at 2 sigma",
    source="huggingface/pytorch-image-models, timm/layers/weight_init.py, trunc_normal_tf_, 1.0.31",
    table=plain(truncated_sigma(0.02)),
    fits=FLAT,
)
