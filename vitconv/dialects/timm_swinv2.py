"""timm's Swin V2 since 0.9: the merging opens a stage, the classifier is head.fc, no buffers.

Source: huggingface/pytorch-image-models, timm/models/swin_transformer_v2.py, 1.0.31.
"""

from vitconv.dialects._swin import published

DIALECT = published(
    "timm-swinv2",
    "timm SwinTransformerV2 (since 0.9)",
    "huggingface/pytorch-image-models timm/models/swin_transformer_v2.py, 1.0.31",
    "timm",
    v2=True,
    merge="layers.{s}.downsample.",
    head="head.fc",
    own=False,
)
