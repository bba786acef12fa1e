"""timm's default cut at 2 sigma and widened, so that the std is .02 as written"""

from __future__ import annotations

from vitconv.inits.base.distribution import truncated_sigma
from vitconv.inits.base.placement import FLAT
from vitconv.inits.base.scheme import Scheme
from vitconv.inits.base.timm_modes import plain

SCHEME = Scheme(
    name="timm-compensated",
    title="timm's default, cut at 2 sigma with the std restored",
    source="google/flax, flax/linen/initializers.py (variance scaling, truncated normal: the factor .87962566)",
    table=plain(truncated_sigma(0.02, compensated=True)),
    fits=FLAT,
)
