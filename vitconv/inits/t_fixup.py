"""T-Fixup: value, output and MLP scaled by .67 N^(-1/4), no norms and no warm-up"""

from __future__ import annotations

from vitconv.inits.base.architecture import Site
from vitconv.inits.base.distribution import Distribution, normal, xavier_uniform
from vitconv.inits.base.fans import linear_fans
from vitconv.inits.base.placement import ONLY_NO_NORM
from vitconv.inits.base.roles import MLP, ONES, lecun, table, weights, xavier
from vitconv.inits.base.scheme import Scheme


def _scaled(site: Site) -> Distribution:
    return xavier_uniform(linear_fans(site.shape), 0.67 * site.arch.depth**-0.25)


def _embedding(site: Site) -> Distribution:
    d, depth = site.shape[-1], site.arch.depth
    return normal(d**-0.5 * (9 * depth) ** -0.25, f"N(0, {d}^-1/2 (9 x {depth})^-1/4)")


SCHEME = Scheme(
    name="t-fixup",
    title="T-Fixup, encoder",
    source="Huang et al., Improving Transformer Optimization Through Better Initialization, 2020, section 3.2",
    table=table(
        linear=xavier,
        patch=lecun,
        pos=_embedding,
        cls=_embedding,
        layer_scale=ONES,
        more=weights(("attn.v", "attn.out", *MLP), _scaled),
    ),
    fits=ONLY_NO_NORM,
    notes=(
        "a norm ahead of the head stays, which the paper has not; --set final_norm=false takes it out",
        "the reference code multiplies value by a further sqrt 2, to undo a gain of its library; the target is as here",
        "the rule for embeddings is applied to tokens and positions; the patch projection is a linear layer and lecun",
    ),
)
