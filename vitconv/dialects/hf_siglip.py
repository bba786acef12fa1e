"""transformers' SigLIP, vision tower.

Source: huggingface/transformers, src/transformers/models/siglip/modeling_siglip.py, 4.57.3 and 5.24.0.
"""

from vitconv.dialects._parts import zeroed
from vitconv.dialects._siglip import siglip

DIALECT = siglip(
    "hf-siglip",
    "transformers SigLIP, vision tower",
    "models/siglip/modeling_siglip.py",
    zeroed("{p}embeddings.patch_embedding", "embed.patch", "d c p q"),
)
