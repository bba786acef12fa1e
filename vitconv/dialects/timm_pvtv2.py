"""timm's PVTv2, its linear form too.

Source: huggingface/pytorch-image-models, timm/models/pvt_v2.py, 1.0.31.
"""

from vitconv.dialects._pyramid import Names, block, pyramid, stem
from vitconv.dialects._swin import S
from vitconv.layout.rule import linear, norm

_AT = "stages.{s}."
_NAMES = Names(
    first=("patch_embed.proj", "patch_embed.norm"),
    patch=(_AT + "downsample.proj", _AT + "downsample.norm"),
    block=_AT + "blocks.{i}.",
    norms=("norm1", "norm2"),
    attn="attn.",
    reduction=("sr", "norm"),
    out="attn.proj",
    mlp=("mlp.fc1", "mlp.fc2"),
    dwc="mlp.dwconv",
)

DIALECT = pyramid(
    "timm-pvtv2",
    "timm PVTv2",
    "huggingface/pytorch-image-models timm/models/pvt_v2.py, 1.0.31",
    (
        *stem(_NAMES),
        *block(_NAMES, fused=True),
        *norm(_AT + "norm", f"{S}norm"),
        *linear("head", "head", "o last", optional=True),
    ),
    v2=True,
    library="timm",
    eps={"norm_eps": 1e-6, "final_norm_eps": 1e-6, "embed_norm_eps": 1e-5},
)
