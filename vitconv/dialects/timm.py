"""timm's VisionTransformer: fused qkv in q, k, v order, heads contiguous, class token first.

Source: huggingface/pytorch-image-models, timm/models/vision_transformer.py, 1.0.31, and deit.py for distilled heads.
"""

from vitconv.layout.dialect import Dialect
from vitconv.layout.rule import Choice, Forbid, Option, linear, norm, rule

_B = "blocks.{i}."

DIALECT = Dialect(
    name="timm",
    title="timm VisionTransformer",
    source="huggingface/pytorch-image-models timm/models/vision_transformer.py, 1.0.31",
    library="timm",
    implies={"norm_placement": ("pre", "res-post"), "kv_normalised": True},
    entries=(
        *rule("cls_token: 1 1 d", "embed.cls: d", optional=True),
        *rule("dist_token: 1 1 d", "embed.dist: d", optional=True),
        *rule("reg_token: 1 r d", "embed.reg: r d", optional=True),
        Choice(
            "position",
            square="n",
            options=(
                Option(
                    "class+patches",
                    rule("pos_embed: 1 (1+n) d", "embed.pos_cls: d", "embed.pos: n d"),
                    needs=("embed.cls",),
                    without=("embed.reg", "embed.dist"),
                ),
                Option(
                    "class+distillation+patches",
                    rule("pos_embed: 1 (1+1+n) d", "embed.pos_cls: d", "embed.pos_dist: d", "embed.pos: n d"),
                    needs=("embed.cls", "embed.dist"),
                    without=("embed.reg",),
                ),
                Option(
                    "class+registers+patches",
                    rule("pos_embed: 1 (1+r+n) d", "embed.pos_cls: d", "embed.pos_reg: r d", "embed.pos: n d"),
                    needs=("embed.cls", "embed.reg"),
                    without=("embed.dist",),
                ),
                Option(
                    "registers+patches",
                    rule("pos_embed: 1 (r+n) d", "embed.pos_reg: r d", "embed.pos: n d"),
                    needs=("embed.reg",),
                    without=("embed.cls", "embed.dist"),
                ),
                Option("patches", rule("pos_embed: 1 n d", "embed.pos: n d")),
                Option("none", without=("embed.pos", "embed.pos_cls", "embed.pos_dist", "embed.pos_reg")),
            ),
        ),
        *linear("patch_embed.proj", "embed.patch", "d c p q", bias=False),
        *norm("norm_pre", "embed.norm", optional=True),
        *norm(_B + "norm1", "blocks.{i}.norm1"),
        *rule(_B + "attn.qkv.weight: (* a) d", "blocks.{i}.attn.{q,k,v}.weight: a d"),
        *rule(
            _B + "attn.qkv.bias: (* a)",
            "blocks.{i}.attn.{q,k,v}.bias: a",
            optional=True,
            fill={"blocks.{i}.attn.k.bias": 0.0},
        ),
        *rule(_B + "attn.{q_norm,k_norm}.weight: e", "blocks.{i}.attn.{q_norm,k_norm}.weight: e", optional=True),
        *rule(_B + "attn.{q_norm,k_norm}.bias: e", "blocks.{i}.attn.{q_norm,k_norm}.bias: e", optional=True),
        *norm(_B + "attn.norm", "blocks.{i}.attn.norm", "a", optional=True),
        *linear(_B + "attn.proj", "blocks.{i}.attn.out", "d a", bias=False),
        *rule(_B + "ls1.gamma: d", "blocks.{i}.ls1: d", optional=True),
        *norm(_B + "norm2", "blocks.{i}.norm2"),
        Choice(
            "mlp",
            (
                Option(
                    "Mlp",
                    linear(_B + "mlp.fc1", "blocks.{i}.mlp.up", "m d", bias=False),
                    without=("blocks.{i}.mlp.gate.weight",),
                ),
                Option(
                    "SwiGLUPacked",
                    (
                        *rule(_B + "mlp.fc1.weight: (* m) d", "blocks.{i}.mlp.{gate,up}.weight: m d"),
                        *rule(_B + "mlp.fc1.bias: (* m)", "blocks.{i}.mlp.{gate,up}.bias: m", optional=True),
                    ),
                    implies={"activation": "silu"},
                ),
                Option(
                    "SwiGLU",
                    (
                        *linear(_B + "mlp.fc1_g", "blocks.{i}.mlp.gate", "m d", bias=False),
                        *linear(_B + "mlp.fc1_x", "blocks.{i}.mlp.up", "m d", bias=False),
                    ),
                    implies={"activation": "silu"},
                ),
            ),
        ),
        *norm(_B + "mlp.norm", "blocks.{i}.mlp.norm", "m", optional=True),
        *linear(_B + "mlp.fc2", "blocks.{i}.mlp.down", "d m", bias=False),
        *rule(_B + "ls2.gamma: d", "blocks.{i}.ls2: d", optional=True),
        *norm("norm", "norm", optional=True),
        *norm("fc_norm", "pool.norm", optional=True),
        *linear("head", "head", "o d", optional=True),
        *linear("head_dist", "head_dist", "o d", optional=True),
    ),
    forbids=(
        Forbid(r"^attn_pool\.", "an attention-pooling head (SigLIP) is not carried yet"),
        Forbid(r"\.in_proj\.|\.in_norm\.", "parallel blocks (ParallelScalingBlock) have no place in other layouts"),
        Forbid(r"\.attn\.gate\.", "gated attention has no place in other layouts"),
        Forbid(r"\.lambda_[qk]", "differential attention has no place in other layouts"),
        Forbid(r"attn\.(q_bias|v_bias)$|\.gamma_[12]$", "this is timm's BEiT/EVA layout, not VisionTransformer"),
    ),
    cannot={
        r"^trunk_norm\.": "a norm at the end of the trunk and a second final norm after it",
        r"^embed\.mask$": "a mask token",
        r"^pool\.dense\.": "a pooler",
    },
)
