"""Microsoft's Swin V2, and timm's before 0.9: biases of queries and values apart, norms after the branches.

Source: microsoft/Swin-Transformer, models/swin_transformer_v2.py, commit f82860b; huggingface/pytorch-image-models,
timm/models/swin_transformer_v2.py, 0.6.
"""

from vitconv.dialects._swin import published

DIALECT = published(
    "swinv2",
    "Microsoft's Swin V2 (also timm before 0.9)",
    "microsoft/Swin-Transformer models/swin_transformer_v2.py; timm/models/swin_transformer_v2.py, 0.6",
    "swin",
    v2=True,
    merge="layers.{s-1}.downsample.",
    head="head",
    own=True,
)
