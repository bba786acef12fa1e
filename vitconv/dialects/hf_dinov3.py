"""transformers' DINOv3 (on disk).

Source: huggingface/transformers, src/transformers/models/dinov3_vit/modeling_dinov3_vit.py, 4.57.3, the names that
version 5 still writes.
"""

from vitconv.dialects._hf_dinov3 import dinov3

DIALECT = dinov3("hf-dinov3", "transformers DINOv3 (on disk)", "4.57.3", "layer.{i}.")
