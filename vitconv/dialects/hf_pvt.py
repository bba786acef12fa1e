"""transformers' PVT.

Source: huggingface/transformers, src/transformers/models/pvt/modeling_pvt.py, 5.24.0.
"""

from vitconv.dialects._pyramid import transformers

DIALECT = transformers("hf-pvt", "transformers PVT", v2=False)
