"""transformers' PVT: everything normal .02, convolutions too"""

from __future__ import annotations

from vitconv.inits.base.distribution import truncated_absolute
from vitconv.inits.base.placement import FLAT
from vitconv.inits.base.roles import ONES, ZEROS, table
from vitconv.inits.base.scheme import Scheme

_USUAL = truncated_absolute(0.02)

SCHEME = Scheme(
    name="hf-pvt",
    title="transformers' PVT",
    source="huggingface/transformers, src/transformers/models/pvt/modeling_pvt.py, 5.24.0",
    table=table(
        linear=_USUAL,
        patch=_USUAL,
        pos=_USUAL,
        cls=_USUAL,
        layer_scale=ONES,
        more={"attn.sr.weight": _USUAL, "attn.sr.bias": ZEROS},
    ),
    fits=FLAT,
    quirk="the convolutions, which PVT itself leaves to torch, are drawn too",
)
