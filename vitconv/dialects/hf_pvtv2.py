"""transformers' PVTv2, its linear form too.

Source: huggingface/transformers, src/transformers/models/pvt_v2/modeling_pvt_v2.py, 5.24.0.
"""

from vitconv.dialects._pyramid import transformers

DIALECT = transformers("hf-pvtv2", "transformers PVTv2", v2=True)
