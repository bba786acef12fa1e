"""xformers' small style: SmallInit for attention, Xavier for the MLP"""

from __future__ import annotations

from vitconv.inits.base.factory import FITS, QK_QUIRK, style
from vitconv.inits.base.scheme import Scheme

SCHEME = Scheme(
    name="xformers-small",
    title="xformers factory, weight_init='small'",
    source="facebookresearch/xformers, xformers/factory/weight_init.py, v0.0.12 to v0.0.28.post3",
    table=style("small", faithful=True),
    fits=FITS,
    quirk=f"uniform where the paper has a normal; {QK_QUIRK}",
)
