"""xformers 0.0.9 and 0.0.10: no init scheme yet, only the joined q, k, v weight is set"""

from __future__ import annotations

from vitconv.inits.base.factory import FITS, early
from vitconv.inits.base.scheme import Scheme

SCHEME = Scheme(
    name="xformers-0-0-9",
    title="xformers 0.0.9 and 0.0.10",
    source="facebookresearch/xformers, xformers/components/in_proj_container.py and factory/model_factory.py, v0.0.9",
    table=early("0.0.9"),
    fits=FITS,
    quirk="q, k and v are drawn as one matrix and halved in variance once more; under DeepNorm value misses beta",
)
