"""xformers' timm style as it was meant: normal .02, not cut; query and key at gain 1"""

from __future__ import annotations

from vitconv.inits.base.factory import FITS, style
from vitconv.inits.base.scheme import Scheme

SCHEME = Scheme(
    name="xformers-timm-paper",
    title="xformers factory, weight_init='timm', as its source has it",
    source="huggingface/pytorch-image-models, timm/models/vision_transformer.py; DeepNet, 2022, figure 2",
    table=style("timm", faithful=False),
    fits=FITS,
)
