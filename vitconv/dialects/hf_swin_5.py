"""transformers' Swin as version 5 holds it in memory.

Source: huggingface/transformers, src/transformers/models/swin/modeling_swin.py, 5.24.0.
"""

from vitconv.dialects._swin import transformers

DIALECT = transformers("hf-swin-5", "transformers Swin (in memory since 5.9)", v2=False, new=True)
