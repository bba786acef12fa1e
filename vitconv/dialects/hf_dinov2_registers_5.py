"""transformers 5 DINOv2 with registers (in memory).

Source: huggingface/transformers, src/transformers/models/dinov2*, 5.24.0.
"""

from vitconv.dialects._hf_dinov2 import IN_MEMORY, dinov2

DIALECT = dinov2("hf-dinov2-registers-5", "transformers 5 DINOv2 with registers (in memory)", IN_MEMORY, registers=True)
