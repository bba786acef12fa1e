"""PVTv2, of its authors, timm and transformers: linear layers normal .02, convolutions by their fan-out"""

from __future__ import annotations

import math

from vitconv.inits.base.architecture import Site
from vitconv.inits.base.distribution import Distribution, normal, truncated_absolute
from vitconv.inits.base.placement import FLAT
from vitconv.inits.base.roles import ONES, ZEROS, table
from vitconv.inits.base.scheme import Scheme

_USUAL = truncated_absolute(0.02)


def _by_fan_out(site: Site) -> Distribution:
    """Return N(0, sqrt(2 / fan_out)); a depthwise filter, [c k k], has the fan-out of one of its channels."""
    shape = site.weight_shape
    fan_out = math.prod(shape[-2:]) * (shape[0] if len(shape) > 3 else 1)
    return normal(math.sqrt(2.0 / fan_out), f"N(0, sqrt 2/{fan_out})")


SCHEME = Scheme(
    name="pvt-v2",
    title="PVTv2",
    source="whai362/PVT, classification/pvt_v2.py, 57e2dfa; timm/models/pvt_v2.py; transformers' modeling_pvt_v2.py",
    table=table(
        linear=_USUAL,
        patch=_by_fan_out,
        pos=_USUAL,
        cls=_USUAL,
        layer_scale=ONES,
        more={
            "attn.sr.weight": _by_fan_out,
            "attn.sr.bias": ZEROS,
            "dwc.weight": _by_fan_out,
            "dwc.bias": ZEROS,
        },
    ),
    fits=FLAT,
    quirk="a patch projection of 7 x 7 pixels is drawn as wide as its outputs are many, not by the pixels it sees",
)
