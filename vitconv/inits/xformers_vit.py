"""xformers' default style: Xavier uniform, in a DeepNorm stack for query and key scaled too"""

from __future__ import annotations

from vitconv.inits.base.factory import FITS, QK_QUIRK, style
from vitconv.inits.base.scheme import Scheme

SCHEME = Scheme(
    name="xformers-vit",
    title="xformers factory, weight_init='vit'",
    source="facebookresearch/xformers, xformers/factory/weight_init.py, v0.0.12 to v0.0.28.post3",
    table=style("vit", faithful=True),
    fits=FITS,
    quirk=f"{QK_QUIRK}, and the patch projection is 1.137 times too wide",
)
