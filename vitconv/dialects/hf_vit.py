"""transformers' ViT as its files have it: the names of version 4, which version 5 still writes.

Source: huggingface/transformers, src/transformers/models/vit/modeling_vit.py, 4.57.3.
"""

from vitconv.dialects._hf import ON_DISK, vit

DIALECT = vit("hf-vit", "transformers ViT (on disk)", ON_DISK)
