"""MoCo v3's vision transformer (facebookresearch): timm's keys, a fixed position table that is stored.

Source: facebookresearch/moco-v3, vits.py, c349e6e. The file of pre-training has the projector in `head` and a momentum
copy; both are no part of the network. Its sine table runs over the rows first.
"""

from vitconv.dialects._fb import CLASS, CLASS_AND_PATCHES, PATCH, blocks, first
from vitconv.dialects._parts import CONVOLUTIONS
from vitconv.layout.rule import linear, norm

DIALECT = first(
    "moco-v3",
    "MoCo v3 of facebookresearch",
    "moco-v3 vits.py, c349e6e",
    (
        *CLASS,
        *CLASS_AND_PATCHES,
        *PATCH,
        *blocks(),
        *norm("norm", "norm"),
        *linear("head", "head", "o d", optional=True),
    ),
    forbids=(CONVOLUTIONS,),
    author={"pooling": "token", "position": "sincos"},
)
