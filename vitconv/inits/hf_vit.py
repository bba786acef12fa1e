"""transformers' ViT: normal .02, patches and tokens too"""

from __future__ import annotations

from vitconv.inits.base.distribution import truncated_absolute
from vitconv.inits.base.placement import FLAT
from vitconv.inits.base.roles import ONES, table
from vitconv.inits.base.scheme import Scheme

_USUAL = truncated_absolute(0.02)

SCHEME = Scheme(
    name="hf-vit",
    title="transformers' ViT",
    source="huggingface/transformers, src/transformers/models/vit/modeling_vit.py, 5.24.0",
    table=table(linear=_USUAL, patch=_USUAL, pos=_USUAL, cls=_USUAL, layer_scale=ONES),
    fits=FLAT,
)
