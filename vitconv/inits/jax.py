"""The JAX reference: Xavier for q, k and v each, lecun for the patches, zero head"""

from __future__ import annotations

from vitconv.inits.base.architecture import Site
from vitconv.inits.base.distribution import Distribution, xavier_uniform
from vitconv.inits.base.fans import Fans
from vitconv.inits.base.placement import FLAT
from vitconv.inits.base.roles import NEAR_ZERO, ONES, ZEROS, by_width, lecun, table, xavier
from vitconv.inits.base.scheme import Scheme


def _probe(site: Site) -> Distribution:
    """Return Xavier of [1 1 d] as flax counts it: one input."""
    return xavier_uniform(Fans(1, site.shape[-1], "probe [1 1 d] as flax counts it"))


SCHEME = Scheme(
    name="jax",
    title="big_vision's ViT",
    source="google-research/big_vision, big_vision/models/vit.py, 0127fb6",
    table=table(
        linear=xavier,
        mlp_bias=NEAR_ZERO,
        patch=lecun,
        pos=by_width,
        cls=ZEROS,
        probe=_probe,
        layer_scale=ONES,
        head=ZEROS,
        head_bias=ZEROS,
    ),
    fits=FLAT,
)
