"""DINO's vision transformer (facebookresearch), the first version: backbone only.

Source: facebookresearch/dino, vision_transformer.py, 7c446df. Its heads (`head.mlp`, `head.last_layer`) are no part of
the network. The table is resized bicubically by a scale factor with 0.1 added to the sides.
"""

from vitconv.dialects._fb import CLASS, CLASS_AND_PATCHES, PATCH, blocks, first
from vitconv.layout.rule import linear, norm

DIALECT = first(
    "dino",
    "DINO of facebookresearch",
    "dino vision_transformer.py, 7c446df",
    (
        *CLASS,
        *CLASS_AND_PATCHES,
        *PATCH,
        *blocks(),
        *norm("norm", "norm"),
        *linear("head", "head", "o d", optional=True),
    ),
    author={"pooling": "token", "position": "learned", "position_resize": "bicubic-offset"},
)
