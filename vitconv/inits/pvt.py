"""PVT, of its authors: linear layers, positions and the token normal .02, convolutions as torch makes them"""

from __future__ import annotations

from vitconv.inits.base.distribution import truncated_absolute
from vitconv.inits.base.placement import FLAT
from vitconv.inits.base.roles import ONES, default, table
from vitconv.inits.base.scheme import Scheme

_USUAL = truncated_absolute(0.02)

SCHEME = Scheme(
    name="pvt",
    title="PVT",
    source="whai362/PVT, classification/pvt.py, 57e2dfa",
    table=table(linear=_USUAL, patch=default, patch_bias=default, pos=_USUAL, cls=_USUAL, layer_scale=ONES),
    fits=FLAT,
)
