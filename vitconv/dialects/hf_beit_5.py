"""transformers' BEiT as version 5 holds it in memory.

Source: huggingface/transformers, src/transformers/models/beit/modeling_beit.py, 5.9 to 5.24.0.
"""

from vitconv.dialects._hf import IN_MEMORY
from vitconv.dialects._hf_beit import beit

DIALECT = beit(
    "hf-beit-5",
    "transformers 5 BEiT (in memory)",
    "5.9 to 5.24.0",
    IN_MEMORY,
    "relative_position_bias.",
    "shared_position_bias.",
)
