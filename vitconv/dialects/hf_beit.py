"""transformers' BEiT (on disk).

Source: huggingface/transformers, src/transformers/models/beit/modeling_beit.py, 4.57.3, the names that version 5 still
writes.
"""

from vitconv.dialects._hf import ON_DISK
from vitconv.dialects._hf_beit import beit

DIALECT = beit(
    "hf-beit",
    "transformers BEiT (on disk)",
    "4.57.3",
    ON_DISK,
    "attention.attention.relative_position_bias.",
    "encoder.relative_position_bias.",
)
