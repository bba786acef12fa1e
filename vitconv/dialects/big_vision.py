"""Google's big_vision: ViT and SigLIP's image tower, block by block or with all layers stacked.

Source: google-research/big_vision, big_vision/models/vit.py, 0127fb6. The class token is put ahead after the positions
are added, so it has none. The pooling head attends with a probe (MAPHead). `params/img/` and the like are taken off.
"""

from vitconv.dialects._flax import AUTHOR, attention, block, dense, norm
from vitconv.dialects._parts import PLAIN, why
from vitconv.layout.dialect import Dialect
from vitconv.layout.rule import Choice, Option, rule

_NAMES = ("LayerNorm_0", "MultiHeadDotProductAttention_0", "LayerNorm_1", "MlpBlock_0")
_MAP = "MAPHead_0/"

DIALECT = Dialect(
    name="big-vision",
    title="big_vision of Google (.npz)",
    source="google-research/big_vision big_vision/models/vit.py, 0127fb6",
    library="big_vision",
    implies=PLAIN,
    author=AUTHOR,
    entries=(
        Choice(
            "tokens",
            (
                Option("patches", without=("embed.cls",), author={"pooling": "avg"}),
                Option("class", rule("cls: 1 1 d", "embed.cls: d"), author={"pooling": "token"}),
            ),
        ),
        Choice(
            "position",
            (
                Option("learned", rule("pos_embedding: 1 n d", "embed.pos: n d"), only={"embedding": ("conv",)}),
                Option("none", without=("embed.pos",), author={"position": "sincos", "sincos_rule": "big-vision"}),
                # NaFlex keeps the table as a grid and the patches as rows.
                Option(
                    "grid",
                    rule("pos_embedding: rows columns d", "embed.pos: (rows columns) d"),
                    only={"embedding": ("rows",)},
                    read_only=True,
                ),
            ),
        ),
        Choice(
            "embedding",
            (
                Option("conv", rule("embedding/kernel: p q c d", "embed.patch.weight: d c p q")),
                Option("rows", rule("embedding/kernel: (p q c) d", "embed.patch.weight: d c p q"), read_only=True),
            ),
        ),
        *rule("embedding/bias: d", "embed.patch.bias: d", fill={"embed.patch.bias": 0.0}),
        Choice(
            "layers",
            (
                Option("apart", block("Transformer/encoderblock_{i}", _NAMES)),
                Option("stacked", block("Transformer/encoderblock", _NAMES, stack="* "), read_only=True),
            ),
        ),
        *norm("Transformer/encoder_norm", "norm"),
        Choice(
            "pool",
            (
                Option("plain", without=("pool.probe",)),
                Option(
                    "map",
                    (
                        *rule(_MAP + "probe: 1 1 d", "pool.probe: d"),
                        *attention(_MAP + "MultiHeadDotProductAttention_0", "pool"),
                        *norm(_MAP + "LayerNorm_0", "pool.mlp_norm"),
                        *dense(_MAP + "MlpBlock_0/Dense_0", "pool.up", "w d"),
                        *dense(_MAP + "MlpBlock_0/Dense_1", "pool.down", "d w"),
                    ),
                    implies={"pooling": "map"},
                ),
            ),
        ),
        Choice(
            "head",
            (
                Option("head", dense("head", "head", "o d", optional=True), without=("pool.dense.weight",)),
                Option(
                    "pre_logits",
                    (*dense("pre_logits", "pool.dense", "d2 d"), *dense("head", "head", "o d2", optional=True)),
                ),
            ),
        ),
    ),
    cannot=why("ls", "embed.norm", "pool.norm", "dist")
    | {
        r"^embed\.pos_cls$": "a position row of the class token; --edit fold-cls-position adds it to the token",
        r"^embed\.(reg|pos_reg)$": "register tokens",
        r"^embed\.mask$": "a mask token",
        r"\.mlp\.gate\.": "a gated MLP (SwiGLU)",
        r"\.attn\.[qk]_norm\.": "norms of queries and keys",
    },
)
