"""transformers' SigLIP 2 (NaFlex), vision tower: patches are flattened over rows, columns, channels.

Source: huggingface/transformers, src/transformers/models/siglip2/modeling_siglip2.py, 4.57.3 and 5.24.0. The position
table is resized for every image, bilinearly with antialias. Files with a patch convolution are of `hf-siglip`.
"""

from vitconv.dialects._siglip import siglip
from vitconv.layout.rule import rule

DIALECT = siglip(
    "hf-siglip2",
    "transformers SigLIP 2, vision tower",
    "models/siglip2/modeling_siglip2.py",
    rule("{p}embeddings.patch_embedding.weight: d (p q c)", "embed.patch.weight: d c p q")
    + rule("{p}embeddings.patch_embedding.bias: d", "embed.patch.bias: d", fill={"embed.patch.bias": 0.0}),
)
