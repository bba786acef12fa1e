"""transformers' MAE with its decoder, as version 5 holds it in memory.

Source: huggingface/transformers, src/transformers/models/vit_mae/modeling_vit_mae.py, 5.9 to 5.24.0.
"""

from vitconv.dialects._hf import IN_MEMORY, mae
from vitconv.layout.rule import Option

DIALECT = mae(
    "hf-mae-5", "transformers 5 MAE (in memory)", IN_MEMORY, Option("layers", bind={"blocks": "decoder_layers"})
)
