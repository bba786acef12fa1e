"""Swin-v2's res-post-norm: the norms of the branches start at gain 0"""

from __future__ import annotations

from vitconv.inits.base.distribution import truncated_absolute
from vitconv.inits.base.placement import ONLY_RES_POST
from vitconv.inits.base.roles import ONES, ZEROS, default, table
from vitconv.inits.base.scheme import Scheme

_USUAL = truncated_absolute(0.02)

SCHEME = Scheme(
    name="small-gain",
    title="Swin-v2, small gain of the norm on the branch",
    source="Liu et al., Swin Transformer V2, 2021, section 3.2; microsoft/Swin-Transformer, swin_transformer_v2.py",
    table=table(
        linear=_USUAL,
        patch=default,
        patch_bias=default,
        pos=_USUAL,
        cls=_USUAL,
        layer_scale=ONES,
        more={f"blocks.{{i}}.norm{k}.weight": ZEROS for k in (1, 2)},
    ),
    fits=ONLY_RES_POST,
    notes=(
        "every branch is 0 at the start, by design: its weights get no gradient in the first step, its gains do",
        (
            "Swin-v2 also bounds the logits (cosine attention, scale ln 10) and biases them by an MLP of the position;"
            " a plain ViT has no place for either, nor for the norm of the stream every 6 blocks in huge models"
        ),
    ),
)
