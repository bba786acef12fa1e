"""DeepNorm: beta for value, output and MLP, gain 1 for query and key, alpha in the residual"""

from __future__ import annotations

from vitconv.inits.base.architecture import Architecture, Site
from vitconv.inits.base.deepnet import alpha, beta
from vitconv.inits.base.distribution import normal
from vitconv.inits.base.placement import ONLY_DEEPNORM
from vitconv.inits.base.roles import MLP, ONES, ZEROS, lecun, table, weights, xavier_gaussian
from vitconv.inits.base.scheme import Need, Scheme


def _beta(site: Site) -> float:
    return beta(site.arch.depth)


def _one(_site: Site) -> float:
    return 1.0


def _has_alpha(arch: Architecture) -> bool:
    return arch.placement != "deepnorm" or abs(arch.alpha / alpha(arch.depth) - 1.0) < 0.01


SCHEME = Scheme(
    name="deepnorm",
    title="DeepNorm, encoder only",
    source="Wang et al., DeepNet, 2022, figure 2: alpha = (2N)^(1/4), beta = (8N)^(-1/4)",
    table=table(
        linear=xavier_gaussian(_one),
        patch=lecun,
        pos=normal(0.02),
        cls=normal(0.02),
        layer_scale=ONES,
        head_bias=ZEROS,
        more=weights(("attn.v", "attn.out", *MLP), xavier_gaussian(_beta)),
    ),
    fits=ONLY_DEEPNORM,
    needs=(
        Need(
            "alpha = (2N)^(1/4) in the residual",
            _has_alpha,
            "beta belongs to that alpha and to no other",
            "--set norm=deepnorm",
        ),
    ),
    notes=("query, key and value are drawn each by itself, also where a layout holds them as one matrix",),
    balanced=True,
)
