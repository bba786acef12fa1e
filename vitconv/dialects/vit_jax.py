"""Google's vit_jax: the files of ViT and of augreg, in the published numbering of modules and in that of today's flax.

Source: google-research/vision_transformer, vit_jax/models_vit.py, c6de1e5, and the names in its published .npz files.
A head width other than 64 is in the kernels. Hybrids with a ResNet stem are not carried.
"""

from vitconv.dialects._flax import AUTHOR, block, dense, norm
from vitconv.dialects._parts import PLAIN, why
from vitconv.layout.dialect import Dialect
from vitconv.layout.rule import Choice, Forbid, Option, rule

_BLOCK = "Transformer/encoderblock_{i}"
_PUBLISHED = ("LayerNorm_0", "MultiHeadDotProductAttention_1", "LayerNorm_2", "MlpBlock_3")
_CURRENT = ("LayerNorm_0", "MultiHeadDotProductAttention_0", "LayerNorm_1", "MlpBlock_0")
_POS = "Transformer/posembed_input/pos_embedding"

DIALECT = Dialect(
    name="vit-jax",
    title="vit_jax and augreg of Google (.npz)",
    source="google-research/vision_transformer vit_jax/models_vit.py, c6de1e5",
    library="vit_jax",
    implies=PLAIN,
    author=AUTHOR | {"position": "learned"},
    entries=(
        Choice(
            "classifier",
            (
                Option(
                    "token",
                    (
                        *rule("cls: 1 1 d", "embed.cls: d"),
                        *rule(f"{_POS}: 1 (1+n) d", "embed.pos_cls: d", "embed.pos: n d"),
                    ),
                    author={"pooling": "token"},
                ),
                Option(
                    "gap", rule(f"{_POS}: 1 n d", "embed.pos: n d"), without=("embed.cls",), author={"pooling": "avg"}
                ),
            ),
        ),
        *rule("embedding/kernel: p q c d", "embed.patch.weight: d c p q"),
        *rule("embedding/bias: d", "embed.patch.bias: d", fill={"embed.patch.bias": 0.0}),
        Choice(
            "numbering", (Option("published", block(_BLOCK, _PUBLISHED)), Option("current", block(_BLOCK, _CURRENT)))
        ),
        *norm("Transformer/encoder_norm", "norm"),
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
    forbids=(
        Forbid(r"^(conv_root|gn_root|block\d+/unit)", "a hybrid with a ResNet stem has no place in plain layouts"),
    ),
    cannot=why("ls", "embed.norm", "pool.norm", "dist", "map")
    | {
        r"^embed\.(reg|pos_reg)$": "register tokens",
        r"^embed\.mask$": "a mask token",
        r"\.mlp\.gate\.": "a gated MLP (SwiGLU)",
        r"\.attn\.[qk]_norm\.": "norms of queries and keys",
    },
)
