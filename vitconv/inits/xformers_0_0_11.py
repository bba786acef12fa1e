"""xformers 0.0.11: no init scheme yet, only the joined q, k, v weight is set"""

from __future__ import annotations

from vitconv.inits.base.factory import FITS, early
from vitconv.inits.base.scheme import Scheme

SCHEME = Scheme(
    name="xformers-0-0-11",
    title="xformers 0.0.11",
    source="facebookresearch/xformers, xformers/components/in_proj_container.py and factory/model_factory.py, v0.0.11",
    table=early("0.0.11"),
    fits=FITS,
    quirk="everything but q, k and v is torch's default (under DeepNorm it agrees with the paper)",
)
