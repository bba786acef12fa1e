"""mmpretrain's VisionTransformer, alone or under `backbone.` with its head.

Source: open-mmlab/mmpretrain, mmpretrain/models/backbones/vision_transformer.py, 1.2.0; the head is that of
mmpretrain/models/heads/vision_transformer_head.py. `ln1` is the final norm, `ln2` the norm after averaging the patches.
mmsegmentation's keys (`attn.attn.in_proj_weight`) are put back into these as a file is read.
"""

from vitconv.dialects._parts import PLAIN, ZERO_QKV, together, why, zeroed
from vitconv.layout.dialect import Dialect
from vitconv.layout.rule import Choice, Forbid, Option, linear, norm, rule

_B = "{p}layers.{i}."

DIALECT = Dialect(
    name="mmpretrain",
    title="mmpretrain VisionTransformer",
    source="open-mmlab/mmpretrain mmpretrain/models/backbones/vision_transformer.py, 1.2.0",
    library="mmpretrain",
    implies=PLAIN,
    author={
        "norm_eps": 1e-6,
        "final_norm_eps": 1e-6,
        "embed_norm_eps": 1e-6,
        "activation": "gelu",
        "position": "learned",
    },
    entries=(
        Choice(
            "prefix",
            (
                Option(
                    "backbone", together(zeroed("head.layers.head", "head", "o d"), "head"), bind={"p": "backbone."}
                ),
                Option("none", bind={"p": ""}),
                # The head with `hidden_dim`; its linears have biases always.
                Option(
                    "backbone-pre_logits",
                    (
                        *linear("head.layers.pre_logits", "pool.dense", "d2 d"),
                        *linear("head.layers.head", "head", "o d2"),
                    ),
                    bind={"p": "backbone."},
                ),
            ),
        ),
        *rule("{p}cls_token: 1 1 d", "embed.cls: d"),
        *rule("{p}pos_embed: 1 (1+n) d", "embed.pos_cls: d", "embed.pos: n d"),
        *linear("{p}patch_embed.projection", "embed.patch", "d c p q", bias=False),
        *norm("{p}pre_norm", "embed.norm", optional=True),
        *norm(_B + "ln1", "blocks.{i}.norm1"),
        *rule(_B + "attn.qkv.weight: (* a) d", "blocks.{i}.attn.{q,k,v}.weight: a d"),
        *rule(_B + "attn.qkv.bias: (* a)", "blocks.{i}.attn.{q,k,v}.bias: a", optional=True, fill=ZERO_QKV),
        *linear(_B + "attn.proj", "blocks.{i}.attn.out", "d a"),
        *rule(_B + "attn.gamma1.weight: d", "blocks.{i}.ls1: d", optional=True, group="layer_scale"),
        *norm(_B + "ln2", "blocks.{i}.norm2"),
        *linear(_B + "ffn.layers.0.0", "blocks.{i}.mlp.up", "m d"),
        *linear(_B + "ffn.layers.1", "blocks.{i}.mlp.down", "d m"),
        *rule(_B + "ffn.gamma2.weight: d", "blocks.{i}.ls2: d", optional=True, group="layer_scale"),
        *norm("{p}ln1", "norm", optional=True),
        *norm("{p}ln2", "pool.norm", optional=True),
    ),
    forbids=(
        Forbid(r"\.attn\.attn\.in_proj_weight$", "this is mmsegmentation's layout, not mmpretrain's"),
        Forbid(r"^neck\.|\.relative_position", "a neck, or relative positions, of another mmpretrain model"),
    ),
    cannot=why("dist", "map")
    | {
        r"^pool\.dense\.": "a pooler without a classifier",
        r"^embed\.(reg|pos_reg)$": "register tokens",
        r"^embed\.mask$": "a mask token",
        r"\.mlp\.gate\.": "a gated MLP (SwiGLU)",
        r"\.attn\.[qk]_norm\.": "norms of queries and keys",
    },
    equal=(("a", "d"),),
)
