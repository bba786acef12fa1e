"""xformers' moco style: Xavier uniform, patch projection untouched"""

from __future__ import annotations

from vitconv.inits.base.factory import FITS, QK_QUIRK, style
from vitconv.inits.base.scheme import Scheme

SCHEME = Scheme(
    name="xformers-moco",
    title="xformers factory, weight_init='moco'",
    source="facebookresearch/xformers, xformers/factory/weight_init.py, v0.0.12 to v0.0.28.post3",
    table=style("moco", faithful=True),
    fits=FITS,
    quirk=f"the patch projection is left at torch's default; {QK_QUIRK}",
)
