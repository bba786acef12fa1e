"""transformers' Swin V2 as its files have it.

Source: huggingface/transformers, src/transformers/models/swinv2/modeling_swinv2.py, 4.57.3 and 5.24.0.
"""

from vitconv.dialects._swin import transformers

DIALECT = transformers("hf-swinv2", "transformers Swin V2 (on disk)", v2=True, new=False)
