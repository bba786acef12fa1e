"""xformers' timm style: normal .02 cut at sqrt 3 sigma, true std .0163"""

from __future__ import annotations

from vitconv.inits.base.factory import FITS, QK_QUIRK, style
from vitconv.inits.base.scheme import Scheme

SCHEME = Scheme(
    name="xformers-timm",
    title="xformers factory, weight_init='timm'",
    source="facebookresearch/xformers, xformers/factory/weight_init.py, v0.0.12 to v0.0.28.post3",
    table=style("timm", faithful=True),
    fits=FITS,
    quirk=f"the cut at sqrt 3 sigma leaves a std of .0163; {QK_QUIRK}",
)
