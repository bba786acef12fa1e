"""I-JEPA's vision transformer (facebookresearch): no class token, a fixed position table that is stored.

Source: facebookresearch/ijepa, src/models/vision_transformer.py, 52c1ae9. The predictor is a branch of its own;
features are the mean of the patches.
"""

from vitconv.dialects._fb import PATCH, blocks, first
from vitconv.layout.rule import norm, rule

DIALECT = first(
    "ijepa",
    "I-JEPA of facebookresearch",
    "ijepa src/models/vision_transformer.py, 52c1ae9",
    (*rule("pos_embed: 1 n d", "embed.pos: n d"), *PATCH, *blocks(), *norm("norm", "norm")),
    author={"pooling": "avg", "position": "sincos"},
    cannot={r"^embed\.(cls|pos_cls)$": "a class token", r"^head\.": "a classifier"},
)
