"""Microsoft's Swin, and timm's before 0.9: merging at the end of a stage, buffers in the file.

Source: microsoft/Swin-Transformer, models/swin_transformer.py, commit f82860b; huggingface/pytorch-image-models,
timm/models/swin_transformer.py, 0.6. The backbones for segmentation and detection (SwinTransformer/
Swin-Transformer-Semantic-Segmentation and -Object-Detection) have a norm for every stage they give, norm0 to norm3, in
place of the last norm, which is their norm3.
"""

from vitconv.dialects._swin import published

DIALECT = published(
    "swin",
    "Microsoft's Swin (also timm before 0.9)",
    "microsoft/Swin-Transformer models/swin_transformer.py; timm/models/swin_transformer.py, 0.6",
    "swin",
    v2=False,
    merge="layers.{s-1}.downsample.",
    head="head",
    own=True,
    dense=True,
)
