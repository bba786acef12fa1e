"""open_clip's own vision tower; a tower from timm under `visual.trunk.` is read as timm's.

Source: mlfoundations/open_clip, src/open_clip/transformer.py, 3.3.0. The activation is GELU unless the configuration,
or a name that ends in -quickgelu, says quick_gelu; head widths other than 64 are in the configuration alone.
"""

from vitconv.dialects._clip import CANNOT, CLIP, DERIVED, projection, tower
from vitconv.layout.dialect import Dialect
from vitconv.layout.rule import Forbid, norm, rule

_B = "transformer.resblocks.{i}."

DIALECT = Dialect(
    name="open-clip",
    title="open_clip, vision tower",
    source="mlfoundations/open_clip src/open_clip/transformer.py, 3.3.0",
    library="open_clip",
    implies=CLIP,
    author={"norm_eps": 1e-5, "final_norm_eps": 1e-5, "embed_norm_eps": 1e-5},
    entries=(
        *tower(),
        *norm("ln_pre", "embed.norm", optional=True),
        *rule(_B + "ls_1.gamma: d", "blocks.{i}.ls1: d", optional=True, group="layer_scale"),
        *rule(_B + "ls_2.gamma: d", "blocks.{i}.ls2: d", optional=True, group="layer_scale"),
        *norm("ln_post", "norm"),
        *projection("proj", transposed=True),
    ),
    forbids=(
        Forbid(r"^attn_pool\.", "open_clip's attentional pooler has a head of its own kind and is not carried"),
        Forbid(r"^layer[1-4]\.|^attnpool\.", "this is CLIP's ResNet tower, not a vision transformer"),
        Forbid(r"attn\.(ln_[qkv]|head_scale|logit_scale)|attn\.ln$|mlp\.ln\.", "norms inside attention or MLP"),
    ),
    derived=DERIVED,
    cannot=CANNOT,
    equal=(("a", "d"),),
)
