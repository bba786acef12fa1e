"""BEiT: normal .02, output and second MLP layer divided by sqrt(2 x block number)"""

from __future__ import annotations

import math

from vitconv.inits.base.architecture import Site
from vitconv.inits.base.distribution import Distribution, constant, truncated_absolute
from vitconv.inits.base.placement import RESCALED
from vitconv.inits.base.roles import default, table, weights
from vitconv.inits.base.scheme import Scheme
from vitconv.layout.canonical import layer_of

_USUAL = truncated_absolute(0.02)


def rescaled(site: Site) -> Distribution:
    """Return N(0, .02 / sqrt(2 l)) for block l = 1..N, drawn afresh and never divided in place; .02 in a pool."""
    if layer_of(site.name) is None:
        return _USUAL
    return truncated_absolute(0.02 / math.sqrt(2.0 * site.number))


def _scale(site: Site) -> Distribution:
    return constant(0.1 if site.arch.depth <= 12 else 1e-5)


SCHEME = Scheme(
    name="beit",
    title="BEiT, with its rescaling by depth",
    source="microsoft/unilm, beit/modeling_finetune.py (fix_init_weight), 768a3c8; timm, fix_init=True",
    table=table(
        linear=_USUAL,
        patch=default,
        patch_bias=default,
        pos=_USUAL,
        cls=_USUAL,
        mask=_USUAL,
        layer_scale=_scale,
        head=truncated_absolute(2e-5),
        more=weights(("attn.out", "mlp.down"), rescaled),
    ),
    fits=RESCALED,
    notes=("the public functions divide in place, so calling one twice gives .02 / (2 l)",),
)
