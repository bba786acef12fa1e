"""transformers' DeiT as version 5 holds it in memory, and writes with save_original_format=False.

Source: huggingface/transformers, src/transformers/models/deit/modeling_deit.py, 5.9 to 5.24.0.
"""

from vitconv.dialects._hf import IN_MEMORY, deit

DIALECT = deit("hf-deit-5", "transformers 5 DeiT (in memory)", IN_MEMORY)
