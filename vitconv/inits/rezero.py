"""ReZero: gates at 0 in place of norms"""

from __future__ import annotations

from vitconv.inits.base.distribution import normal
from vitconv.inits.base.placement import ONLY_NO_NORM
from vitconv.inits.base.roles import ZEROS, lecun, table, xavier
from vitconv.inits.base.scheme import Need, Scheme

SCHEME = Scheme(
    name="rezero",
    title="ReZero",
    source="Bachlechner et al., ReZero is All You Need, 2020, equation 3",
    table=table(linear=xavier, patch=lecun, pos=normal(0.02), cls=normal(0.02), layer_scale=ZEROS),
    fits=ONLY_NO_NORM,
    needs=(
        Need(
            "a gate on every branch",
            lambda arch: arch.has("blocks.0.ls1"),
            "the gates are what starts at 0",
            "--set layer_scale=true",
        ),
    ),
    notes=(
        "the paper has one gate per branch; here it is one per channel, all equal at the start",
        "a norm ahead of the head stays, which the paper has not; --set final_norm=false takes it out",
    ),
)
