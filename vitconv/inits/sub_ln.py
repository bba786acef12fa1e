"""Sub-LN (Magneto): value, output and MLP at sqrt(ln 2N), with a norm inside each branch"""

from __future__ import annotations

import math

from vitconv.inits.base.architecture import Architecture, Site
from vitconv.inits.base.distribution import normal
from vitconv.inits.base.placement import ONLY_PRE
from vitconv.inits.base.roles import MLP, ONES, lecun, table, weights, xavier_gaussian
from vitconv.inits.base.scheme import Need, Scheme


def _gamma(site: Site) -> float:
    return math.sqrt(math.log(2.0 * site.arch.depth))


def _one(_site: Site) -> float:
    return 1.0


def _has_inner_norms(arch: Architecture) -> bool:
    return arch.has("blocks.0.attn.norm.weight") and arch.has("blocks.0.mlp.norm.weight")


SCHEME = Scheme(
    name="sub-ln",
    title="sub-LN of Magneto, encoder only",
    source="Wang et al., Foundation Transformers (Magneto), 2022, figure 2; microsoft/torchscale, 4d1e0e8",
    table=table(
        linear=xavier_gaussian(_one),
        patch=lecun,
        pos=normal(0.02),
        cls=normal(0.02),
        layer_scale=ONES,
        more=weights(("attn.v", "attn.out", *MLP), xavier_gaussian(_gamma)),
    ),
    fits=ONLY_PRE,
    needs=(
        Need(
            "a norm ahead of the output projection and of the second MLP layer",
            _has_inner_norms,
            "a gain above 1 is only bounded by them",
            "--set sub_norm=true",
        ),
    ),
)
