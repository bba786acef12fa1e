"""mmpretrain's Swin backbone: the merging unfolds its input, channels outermost, so its columns are in another order.

Source: open-mmlab/mmpretrain, mmpretrain/models/backbones/swin_transformer.py and mmcv's PatchMerging, 1.2.0.
"""

from vitconv.dialects._swin import AUTHOR, BY_ROW, MASK, B, cannot, fixed, indices, merging, offsets, qkv
from vitconv.layout.canonical_stages import FAMILY
from vitconv.layout.dialect import Dialect
from vitconv.layout.rule import linear, norm, rule

_AT = "stages.{s}.blocks.{i}."

DIALECT = Dialect(
    name="mmpretrain-swin",
    title="mmpretrain SwinTransformer",
    source="open-mmlab/mmpretrain mmpretrain/models/backbones/swin_transformer.py, 1.2.0",
    library="mmpretrain",
    family=FAMILY,
    staged=True,
    implies=fixed(False),
    author=AUTHOR,
    entries=(
        *linear("patch_embed.projection", "embed.patch", "d c p q"),
        *norm("patch_embed.norm", "embed.norm", optional=True),
        *rule("absolute_pos_embed: 1 n d", "embed.pos: n d", optional=True),
        *norm(_AT + "norm1", B + "norm1"),
        *qkv(_AT + "attn.w_msa.", v2=False),
        *offsets(_AT + "attn.w_msa.", v2=False),
        *indices(_AT + "attn.w_msa.", v2=False),
        *linear(_AT + "attn.w_msa.proj", B + "attn.out", "d a"),
        *norm(_AT + "norm2", B + "norm2"),
        *linear(_AT + "ffn.layers.0.0", B + "mlp.up", "m d"),
        *linear(_AT + "ffn.layers.1", B + "mlp.down", "d m"),
        *merging("stages.{s-1}.downsample.", v2=False, order=BY_ROW, channels_first=True),
        *norm("norm{l}", "norm", "last"),
    ),
    cannot=cannot(False, **{r"^head\.": "a classifier: it is a module of its own beside the backbone"}, **MASK),
    equal=(("a", "d"),),
)
