"""torchvision's VisionTransformer: nn.MultiheadAttention with q, k, v stacked, biases everywhere.

Source: pytorch/vision, torchvision/models/vision_transformer.py, 0.29.1. Files of before 0.13 name the MLP's layers
`linear_1` and `linear_2`; the library renames them when it loads.
"""

from vitconv.dialects._parts import TABLE
from vitconv.layout.dialect import Dialect
from vitconv.layout.rule import Choice, Forbid, Option, linear, norm, rule

_B = "encoder.layers.encoder_layer_{i}."

DIALECT = Dialect(
    name="torchvision",
    title="torchvision VisionTransformer",
    source="pytorch/vision torchvision/models/vision_transformer.py, 0.29.1",
    library="torchvision",
    implies={
        "norm_placement": "pre",
        "norm_kind": "layernorm",
        "kv_normalised": True,
        "attention": "softmax",
        "activation": "gelu",
        "pooling": "token",
        "position": TABLE,
    },
    usual={"norm_eps": 1e-6, "final_norm_eps": 1e-6},
    entries=(
        *rule("class_token: 1 1 d", "embed.cls: d"),
        *rule("encoder.pos_embedding: 1 (1+n) d", "embed.pos_cls: d", "embed.pos: n d"),
        *linear("conv_proj", "embed.patch", "d c p q"),
        *norm(_B + "ln_1", "blocks.{i}.norm1"),
        *rule(_B + "self_attention.in_proj_weight: (* a) d", "blocks.{i}.attn.{q,k,v}.weight: a d"),
        *rule(
            _B + "self_attention.in_proj_bias: (* a)",
            "blocks.{i}.attn.{q,k,v}.bias: a",
            fill={f"blocks.{{i}}.attn.{x}.bias": 0.0 for x in "qkv"},
        ),
        *linear(_B + "self_attention.out_proj", "blocks.{i}.attn.out", "d a"),
        *norm(_B + "ln_2", "blocks.{i}.norm2"),
        Choice(
            "mlp",
            (
                Option(
                    "current",
                    (
                        *linear(_B + "mlp.0", "blocks.{i}.mlp.up", "m d"),
                        *linear(_B + "mlp.3", "blocks.{i}.mlp.down", "d m"),
                    ),
                ),
                Option(
                    "legacy",
                    (
                        *linear(_B + "mlp.linear_1", "blocks.{i}.mlp.up", "m d"),
                        *linear(_B + "mlp.linear_2", "blocks.{i}.mlp.down", "d m"),
                    ),
                ),
            ),
        ),
        *norm("encoder.ln", "norm"),
        Choice(
            "heads",
            (
                Option("head", linear("heads.head", "head", "o d", optional=True)),
                Option(
                    "pre_logits",
                    (
                        *linear("heads.pre_logits", "pool.dense", "d2 d"),
                        *linear("heads.head", "head", "o d2"),
                    ),
                ),
            ),
        ),
    ),
    forbids=(
        Forbid(r"^conv_proj\.conv_", "a convolutional stem (ConvStemConfig) instead of a patch projection"),
        Forbid(r"relative_position_bias_table$", "this is torchvision's Swin, not its VisionTransformer"),
    ),
    cannot={
        r"\.ls[12]$": "LayerScale; --edit fold-layer-scale folds it into the linears before it",
        r"^embed\.(reg|pos_reg)$": "register tokens",
        r"^embed\.(dist|pos_dist)$|^head_dist\.": "a distillation token and its head",
        r"^embed\.mask$": "a mask token",
        r"^embed\.norm\.": "a norm before the first block",
        r"\.attn\.[qk]_norm\.": "norms of queries and keys",
        r"\.attn\.norm\.": "a norm before the output projection",
        r"\.mlp\.norm\.": "a norm inside the MLP",
        r"\.mlp\.gate\.": "a gated MLP (SwiGLU)",
        r"^pool\.norm\.": "a norm after pooling: it norms before",
        r"^pool\.dense\.": "a pooler without a classifier",
        r"^trunk_norm\.": "a norm at the end of the trunk and a second final norm after it",
    },
    equal=(("a", "d"),),
)
