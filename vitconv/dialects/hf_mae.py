"""transformers' MAE with its decoder (on disk).

Source: huggingface/transformers, src/transformers/models/vit_mae/modeling_vit_mae.py, 4.57.3, the names that version 5
was meant to write. 5.24.0 writes the decoder's blocks as `decoder.decoder_encoder.layer.{i}`, which 4.57 does not read:
such a file is read here, and never written.
"""

from vitconv.dialects._hf import ON_DISK, mae
from vitconv.layout.rule import Option

DIALECT = mae(
    "hf-mae",
    "transformers MAE (on disk)",
    ON_DISK,
    Option("layers", bind={"blocks": "decoder_layers"}),
    Option("corrupted", bind={"blocks": "decoder_encoder.layer"}, read_only=True),
)
