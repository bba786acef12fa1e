"""GPT-2's residual scaling: output and second MLP layer at .02 / sqrt(2N)"""

from __future__ import annotations

import math

from vitconv.inits.base.architecture import Site
from vitconv.inits.base.distribution import Distribution, normal
from vitconv.inits.base.placement import RESCALED
from vitconv.inits.base.roles import ONES, default, table, weights
from vitconv.inits.base.scheme import Scheme


def _residual(site: Site) -> Distribution:
    depth = site.arch.depth
    return normal(0.02 / math.sqrt(2.0 * depth), f"N(0, .02 / sqrt(2 x {depth}))")


SCHEME = Scheme(
    name="gpt2",
    title="GPT-2's residual scaling",
    source="Radford et al., 2019, section 2.3; huggingface/transformers, modeling_gpt2.py",
    table=table(
        linear=normal(0.02),
        patch=default,
        patch_bias=default,
        pos=normal(0.02),
        cls=normal(0.02),
        layer_scale=ONES,
        more=weights(("attn.out", "mlp.down"), _residual),
    ),
    fits=RESCALED,
)
