"""transformers DINOv2 with registers (on disk).

Source: huggingface/transformers, src/transformers/models/dinov2*, 4.57.3, the names that version 5 still writes.
"""

from vitconv.dialects._hf_dinov2 import ON_DISK, dinov2

DIALECT = dinov2("hf-dinov2-registers", "transformers DINOv2 with registers (on disk)", ON_DISK, registers=True)
