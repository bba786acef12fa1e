"""xformers' default style as it was meant: query and key at gain 1, exact lecun patches"""

from __future__ import annotations

from vitconv.inits.base.factory import FITS, style
from vitconv.inits.base.scheme import Scheme

SCHEME = Scheme(
    name="xformers-vit-paper",
    title="xformers factory, weight_init='vit', as its source has it",
    source="google-research/big_vision, models/vit.py; Wang et al., DeepNet, 2022, figure 2",
    table=style("vit", faithful=False),
    fits=FITS,
)
