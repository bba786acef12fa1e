"""xformers 0.0.1 to 0.0.8: no init scheme yet, only the joined q, k, v weight is set"""

from __future__ import annotations

from vitconv.inits.base.factory import FITS, early
from vitconv.inits.base.scheme import Fit, Scheme

SCHEME = Scheme(
    name="xformers-0-0-8",
    title="xformers 0.0.1 to 0.0.8",
    source="facebookresearch/xformers, xformers/components/in_proj_container.py and factory/model_factory.py, v0.0.8",
    table=early("0.0.8"),
    fits={**FITS, "deepnorm": Fit("refuse", "these releases build no DeepNorm stack")},
    quirk="q, k and v are drawn as one matrix (gain sqrt(1/2)), everything else is torch's default",
)
