"""transformers' SigLIP, vision tower: Xavier for q, k and v each, the pooling head's as one"""

from __future__ import annotations

import math

from vitconv.inits.base.architecture import Site
from vitconv.inits.base.distribution import Distribution, cut_factor, truncated_absolute, xavier_uniform
from vitconv.inits.base.fans import Fans
from vitconv.inits.base.placement import FLAT
from vitconv.inits.base.roles import NEAR_ZERO, ONES, by_width, fused_xavier, table, weights, xavier
from vitconv.inits.base.scheme import Scheme


def _widened(site: Site) -> Distribution:
    """Return N(0, 1/sqrt fan-in), widened for a cut at 2 sigma, and cut at the values -2 and 2."""
    return truncated_absolute(math.prod(site.shape[1:]) ** -0.5 / cut_factor(2.0))


def _probe(site: Site) -> Distribution:
    """Return Xavier of [1 1 d] as torch counts it: the width on either side."""
    return xavier_uniform(Fans(site.shape[-1], site.shape[-1], "probe [1 1 d] as torch counts it"))


_POOL = weights(("pool.q", "pool.k", "pool.v"), fused_xavier) | weights(("pool.out",), _widened)

SCHEME = Scheme(
    name="hf-siglip",
    title="transformers' SigLIP and SigLIP 2, vision tower",
    source="huggingface/transformers, src/transformers/models/siglip/modeling_siglip.py, 5.24.0",
    table=table(
        linear=xavier,
        mlp_bias=NEAR_ZERO,
        patch=_widened,
        pos=by_width,
        cls=by_width,
        probe=_probe,
        layer_scale=ONES,
        head=by_width,
        more=_POOL,
    ),
    fits=FLAT,
    quirk="lecun_normal_ is widened for a cut at 2 sigma that is not made: patches come out 1.137 times as large",
)
