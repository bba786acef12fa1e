"""Microsoft's Swin, and timm's before 0.9: merging at the end of a stage, buffers in the file.

Source: microsoft/Swin-Transformer, models/swin_transformer.py, commit f82860b; huggingface/pytorch-image-models,
timm/models/swin_transformer.py, 0.6.
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
)
