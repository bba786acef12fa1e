"""transformers' I-JEPA as version 5 holds it in memory.

Source: huggingface/transformers, src/transformers/models/ijepa/modeling_ijepa.py, 5.9 to 5.24.0.
"""

from vitconv.dialects._hf import IN_MEMORY, ijepa

DIALECT = ijepa("hf-ijepa-5", "transformers 5 I-JEPA (in memory)", IN_MEMORY)
