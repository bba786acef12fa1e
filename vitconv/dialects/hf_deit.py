"""transformers' DeiT as its files have it: the names of version 4, which version 5 still writes.

Source: huggingface/transformers, src/transformers/models/deit/modeling_deit.py, 4.57.3.
"""

from vitconv.dialects._hf import ON_DISK, deit

DIALECT = deit("hf-deit", "transformers DeiT (on disk)", ON_DISK)
