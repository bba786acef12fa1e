"""timm's NaFlexVit with the blocks of its VisionTransformer: `naflexvit_*`, and ViTs that are built as NaFlex.

Source: huggingface/pytorch-image-models, timm/models/naflexvit.py, 1.0.31; `create_model(name, use_naflex=True)` builds
classic names so.
"""

from vitconv.dialects._naflex import MIXED, PREFIX, stem
from vitconv.dialects._parts import BLOCK, TABLE, fused
from vitconv.dialects._timm import ENCODER, NO_PLACE, OWN_KINDS, branches, head, map_pool, norm_layer, pre_norm
from vitconv.layout.dialect import Dialect

DIALECT = Dialect(
    name="timm-naflex",
    title="timm NaFlexVit",
    source="huggingface/pytorch-image-models timm/models/naflexvit.py, 1.0.31",
    library="timm",
    implies={"norm_placement": ("pre", "res-post"), "kv_normalised": True, "attention": "softmax", "position": TABLE},
    entries=(
        *stem(),
        pre_norm("embeds.proj.bias"),
        norm_layer(),
        *fused(BLOCK + "attn.qkv.weight", BLOCK + "attn.qkv.bias"),
        *branches(),
        *map_pool(),
        *head(),
    ),
    forbids=(*OWN_KINDS, MIXED),
    doubts=(ENCODER,),
    cannot=NO_PLACE | PREFIX | {r"^embed\.pixel_norm\.": "a norm of the pixels of a patch"},
    equal=(("a", "d"),),
)
