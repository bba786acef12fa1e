"""transformers' Swin as its files have it.

Source: huggingface/transformers, src/transformers/models/swin/modeling_swin.py, 4.57.3 and 5.24.0.
"""

from vitconv.dialects._swin import transformers

DIALECT = transformers("hf-swin", "transformers Swin (on disk)", v2=False, new=False)
