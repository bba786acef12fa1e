"""xformers' small style as it was meant: SmallInit by a normal, query and key at gain 1"""

from __future__ import annotations

from vitconv.inits.base.factory import FITS, style
from vitconv.inits.base.scheme import Scheme

SCHEME = Scheme(
    name="xformers-small-paper",
    title="xformers factory, weight_init='small', as its source has it",
    source="Nguyen & Salazar, Transformers without Tears, 2019, section 2.2",
    table=style("small", faithful=False),
    fits=FITS,
)
