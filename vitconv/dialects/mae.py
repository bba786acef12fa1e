"""Masked autoencoders (facebookresearch): the encoder, with its decoder, or fine-tuned.

Source: facebookresearch/mae, models_mae.py and models_vit.py, efb2a80. Both position tables are fixed and stored; the
pixels that are predicted for a patch run over rows, columns, channels. The fine-tuned form pools the patches and norms
them after (`fc_norm`).
"""

from vitconv.dialects._fb import CLASS, CLASS_AND_PATCHES, PATCH, blocks, first
from vitconv.layout.rule import Choice, Option, linear, norm, rule

_D, _C = "decoder_blocks.{i}.", "decoder.blocks.{i}."

DIALECT = first(
    "mae",
    "MAE of facebookresearch",
    "mae models_mae.py and models_vit.py, efb2a80",
    (
        *CLASS,
        *CLASS_AND_PATCHES,
        *PATCH,
        *blocks(),
        Choice(
            "decoder",
            (
                Option(
                    "kept",
                    (
                        *norm("norm", "norm"),
                        *rule("mask_token: 1 1 y", "decoder.mask: y"),
                        *linear("decoder_embed", "decoder.embed", "y d"),
                        *rule("decoder_pos_embed: 1 (1+n) y", "decoder.pos_cls: y", "decoder.pos: n y"),
                        *norm(_D + "norm1", _C + "norm1", "y"),
                        *rule(_D + "attn.qkv.weight: (* g) y", _C + "attn.{q,k,v}.weight: g y"),
                        *rule(_D + "attn.qkv.bias: (* g)", _C + "attn.{q,k,v}.bias: g", optional=True),
                        *linear(_D + "attn.proj", _C + "attn.out", "y g"),
                        *norm(_D + "norm2", _C + "norm2", "y"),
                        *linear(_D + "mlp.fc1", _C + "mlp.up", "x y"),
                        *linear(_D + "mlp.fc2", _C + "mlp.down", "y x"),
                        *norm("decoder_norm", "decoder.norm", "y"),
                        *linear("decoder_pred", "decoder.pred", "z y"),
                    ),
                    needs=("decoder.embed.weight",),
                    implies={"pooling": "none"},
                ),
                Option(
                    "none",
                    (*norm("norm", "norm"), *linear("head", "head", "o d", optional=True)),
                    without=("decoder.embed.weight", "pool.norm.weight"),
                    author={"pooling": "token"},
                ),
                Option(
                    "fine-tuned",
                    (*norm("fc_norm", "pool.norm"), *linear("head", "head", "o d", optional=True)),
                    implies={"pooling": "avg"},
                    without=("norm.weight",),
                ),
            ),
        ),
    ),
    author={"position": "sincos"},
)
