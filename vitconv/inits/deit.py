"""DeiT and DINO: normal .02, tokens too"""

from __future__ import annotations

from vitconv.inits.base.distribution import truncated_absolute
from vitconv.inits.base.placement import FLAT
from vitconv.inits.base.roles import ONES, default, table
from vitconv.inits.base.scheme import Scheme

_USUAL = truncated_absolute(0.02)

SCHEME = Scheme(
    name="deit",
    title="DeiT, DINO",
    source="facebookresearch/deit, models.py, 7e160fe; facebookresearch/dino, vision_transformer.py",
    table=table(
        linear=_USUAL, patch=default, patch_bias=default, pos=_USUAL, cls=_USUAL, mask=_USUAL, layer_scale=ONES
    ),
    fits=FLAT,
)
