"""The init function of the first public report, with what it misses by release"""

from __future__ import annotations

from vitconv.inits.base.architecture import Site
from vitconv.inits.base.distribution import Distribution, truncated_absolute, xavier_uniform
from vitconv.inits.base.factory import FITS
from vitconv.inits.base.fans import fused_fans, linear_fans
from vitconv.inits.base.roles import ONES, QKV, default, table, weights
from vitconv.inits.base.scheme import Scheme

_USUAL = truncated_absolute(0.02)
_HALF = 0.5**0.5


def _release(site: Site) -> tuple[int, ...]:
    text = (site.arch.facts.release or "0.0.28").partition(".post")[0]
    return tuple(int(part) for part in text.split("."))


def _projection(site: Site) -> Distribution:
    """Return .02 where q, k and v are nn.Linear; up to 0.0.11 they are a bare parameter, which the function misses."""
    release = _release(site)
    if release >= (0, 0, 12):
        return _USUAL
    if release >= (0, 0, 11):
        return xavier_uniform(linear_fans(site.shape), _HALF)
    return xavier_uniform(fused_fans(site.shape), _HALF if release >= (0, 0, 9) else 1.0)


SCHEME = Scheme(
    name="first-report",
    title="normal .02 on nn.Linear and nn.LayerNorm, applied to a ViT around xformers' factory",
    source="facebookresearch/xformers, the issue on ViT-B instability (#219): _init_vit_weights",
    table=table(
        linear=_USUAL,
        patch=default,
        patch_bias=default,
        pos=_USUAL,
        cls=_USUAL,
        layer_scale=ONES,
        more=weights(QKV, _projection),
    ),
    fits=FITS,
    notes=(
        "it overwrites DeepNorm's beta with .02, which at ViT-B is a gain of .554 in attention and .876 in the MLP",
    ),
    quirk="it looks for nn.Linear and nn.LayerNorm: the patch projection is missed, and up to 0.0.11 q, k and v too",
)
