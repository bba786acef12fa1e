"""InternViT (OpenGVLab): the vision tower of InternVL, under transformers' module names, without a final norm.

Source: OpenGVLab/InternVL, internvl_chat/internvl/model/internvl_chat/modeling_intern_vit.py, 2d93b09. The large model
norms queries and keys over the whole width, not by head.
"""

from vitconv.dialects._parts import PLAIN, fused, ones, why
from vitconv.layout.dialect import Dialect
from vitconv.layout.rule import Choice, Forbid, Option, linear, norm, rule

_B = "encoder.layers.{i}."
_NORMS = (("norm1", "blocks.{i}.norm1"), ("norm2", "blocks.{i}.norm2"))

DIALECT = Dialect(
    name="internvit",
    title="InternViT of OpenGVLab",
    source="OpenGVLab/InternVL internvl_chat/internvl/model/internvl_chat/modeling_intern_vit.py, 2d93b09",
    library="internvl",
    implies={k: v for k, v in PLAIN.items() if k != "norm_kind"},
    author={
        "norm_eps": 1e-6,
        "activation": "gelu",
        "pooling": "token",
        "position": "learned",
        "position_resize": "bicubic",
    },
    entries=(
        *rule("embeddings.class_embedding: 1 1 d", "embed.cls: d"),
        *rule("embeddings.position_embedding: 1 (1+n) d", "embed.pos_cls: d", "embed.pos: n d"),
        *linear("embeddings.patch_embedding", "embed.patch", "d c p q"),
        Choice(
            "norm",
            (
                Option(
                    "layer_norm",
                    tuple(r for key, part in _NORMS for r in norm(_B + key, part)),
                    implies={"norm_kind": "layernorm"},
                ),
                Option(
                    "rms_norm",
                    tuple(r for key, part in _NORMS for r in rule(f"{_B}{key}.weight: d", f"{part}.weight: d")),
                    implies={"norm_kind": "rmsnorm"},
                    without=("blocks.{i}.norm1.bias",),
                ),
            ),
        ),
        *fused(_B + "attn.qkv.weight", _B + "attn.qkv.bias"),
        *linear(_B + "attn.proj", "blocks.{i}.attn.out", "d a"),
        *ones(_B + "ls1", "blocks.{i}.ls1"),
        *linear(_B + "mlp.fc1", "blocks.{i}.mlp.up", "m d"),
        *linear(_B + "mlp.fc2", "blocks.{i}.mlp.down", "d m"),
        *ones(_B + "ls2", "blocks.{i}.ls2"),
    ),
    forbids=(
        Forbid(r"\.attn\.[qk]_norm\.weight$", "norms of queries and keys over the whole width have no place elsewhere"),
    ),
    cannot=why("embed.norm", "pool.norm", "pool.dense", "dist", "map")
    | {
        r"^embed\.(reg|pos_reg)$": "register tokens",
        r"^embed\.mask$": "a mask token",
        r"\.attn\.[qk]_norm\.": "norms of queries and keys by head",
        r"\.mlp\.gate\.": "a gated MLP (SwiGLU)",
        r"^norm\.": "a final norm",
        r"^head\.": "a classifier",
    },
    equal=(("a", "d"),),
)
