"""xformers' moco style as it was meant: MoCo v3's rule for the patches, query and key at gain 1"""

from __future__ import annotations

from vitconv.inits.base.factory import FITS, style
from vitconv.inits.base.scheme import Scheme

SCHEME = Scheme(
    name="xformers-moco-paper",
    title="xformers factory, weight_init='moco', as its source has it",
    source="Chen et al., MoCo v3, 2021; facebookresearch/moco-v3, vits.py",
    table=style("moco", faithful=False),
    fits=FITS,
)
