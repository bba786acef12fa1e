"""transformers' DINOv3 as version 5 holds it in memory.

Source: huggingface/transformers, src/transformers/models/dinov3_vit/modeling_dinov3_vit.py, 5.4 to 5.24.0.
"""

from vitconv.dialects._hf_dinov3 import dinov3

DIALECT = dinov3("hf-dinov3-5", "transformers 5 DINOv3 (in memory)", "5.4 to 5.24.0", "model.layer.{i}.")
