"""transformers' DeiT: normal .02, tokens and positions all zero"""

from __future__ import annotations

from vitconv.inits.base.distribution import truncated_absolute
from vitconv.inits.base.placement import FLAT
from vitconv.inits.base.roles import ONES, ZEROS, table
from vitconv.inits.base.scheme import Scheme

_USUAL = truncated_absolute(0.02)

SCHEME = Scheme(
    name="hf-deit",
    title="transformers' DeiT",
    source="huggingface/transformers, src/transformers/models/deit/modeling_deit.py, 5.24.0",
    table=table(linear=_USUAL, patch=_USUAL, pos=ZEROS, cls=ZEROS, layer_scale=ONES),
    fits=FLAT,
    quirk="positions start at 0 where DeiT itself draws them from N(0, .02)",
)
