"""OpenAI's CLIP, vision tower: torch's own constructors, tokens and projection by width"""

from __future__ import annotations

from vitconv.inits.base.placement import FLAT
from vitconv.inits.base.roles import ONES, QKV, ZEROS, by_width, default, fused_xavier, table, weights
from vitconv.inits.base.scheme import Scheme

SCHEME = Scheme(
    name="clip",
    title="OpenAI's CLIP and open_clip, vision tower",
    source="openai/CLIP, clip/model.py, d05afc4; mlfoundations/open_clip, src/open_clip/transformer.py, 3.3.0",
    table=table(
        linear=default,
        bias=ZEROS,
        mlp_bias=default,
        patch=default,
        patch_bias=default,
        pos=by_width,
        cls=by_width,
        layer_scale=ONES,
        head=by_width,
        more=weights(QKV, fused_xavier),
    ),
    fits=FLAT,
    quirk="initialize_parameters sets the blocks of the text tower alone, and those of the vision tower stay as torch "
    "makes them; its rule on them is clip-text",
)
