"""timm's Swin since 0.9: the merging opens a stage, the classifier is head.fc, no buffers.

Source: huggingface/pytorch-image-models, timm/models/swin_transformer.py, 1.0.31.
"""

from vitconv.dialects._swin import published

DIALECT = published(
    "timm-swin",
    "timm SwinTransformer (since 0.9)",
    "huggingface/pytorch-image-models timm/models/swin_transformer.py, 1.0.31",
    "timm",
    v2=False,
    merge="layers.{s}.downsample.",
    head="head.fc",
    own=False,
)
