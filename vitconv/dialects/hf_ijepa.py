"""transformers' I-JEPA (on disk).

Source: huggingface/transformers, src/transformers/models/ijepa/modeling_ijepa.py, 4.57.3, the names that
version 5 still writes.
"""

from vitconv.dialects._hf import ON_DISK, ijepa

DIALECT = ijepa("hf-ijepa", "transformers I-JEPA (on disk)", ON_DISK)
