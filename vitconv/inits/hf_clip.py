"""transformers' CLIP, vision tower: CLIP's rule with the places of two deviations exchanged"""

from __future__ import annotations

from vitconv.inits.base.distribution import normal
from vitconv.inits.base.placement import FLAT
from vitconv.inits.base.roles import ONES, QKV, by_width, table, weights
from vitconv.inits.base.scheme import Scheme
from vitconv.inits.clip_text import ending, rising

SCHEME = Scheme(
    name="hf-clip",
    title="transformers' CLIP, vision tower",
    source="huggingface/transformers, src/transformers/models/clip/modeling_clip.py, 5.24.0",
    table=table(
        linear=by_width,
        patch=normal(0.02),
        pos=normal(0.02),
        cls=by_width,
        layer_scale=ONES,
        head=by_width,
        more=weights(QKV, lambda site: ending(site, site.shape[1]))
        | weights(("mlp.down",), lambda site: ending(site, site.shape[0]))
        | weights(("mlp.up", "mlp.gate"), rising),
    ),
    fits=FLAT,
    quirk="q, k and v get the deviation that CLIP gives the output projection, 1/sqrt(2N d), and the output "
    "projection theirs, 1/sqrt d",
)
