"""transformers' ViT as version 5 holds it in memory, and writes with save_original_format=False.

Source: huggingface/transformers, src/transformers/models/vit/modeling_vit.py, 5.9 to 5.24.0.
"""

from vitconv.dialects._hf import IN_MEMORY, vit

DIALECT = vit("hf-vit-5", "transformers 5 ViT (in memory)", IN_MEMORY)
