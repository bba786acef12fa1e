"""What EVA and timm's Eva have in common: q and v with a bias, k without one, LayerScale as gamma.

Source: huggingface/pytorch-image-models, timm/models/eva.py, 1.0.31; baaivision/EVA, EVA-02/asuka/modeling_finetune.py,
5623d08.
"""

from typing import Any

from vitconv.dialects._parts import BLOCK, together, zeroed
from vitconv.layout.rule import Choice, Entry, Option, linear, norm, rule

QV: dict[str, float | str] = {f"blocks.{{i}}.attn.{x}.bias": 0.0 for x in "qv"}
# timm's MLP without a gate, and with one in a linear layer of its own (`swiglu_mlp`).
UNGATED = Option("Mlp", linear(BLOCK + "mlp.fc1", "blocks.{i}.mlp.up", "m d"), without=("blocks.{i}.mlp.gate.weight",))
SWIGLU = Option(
    "SwiGLU",
    (
        *linear(BLOCK + "mlp.fc1_g", "blocks.{i}.mlp.gate", "m d"),
        *linear(BLOCK + "mlp.fc1_x", "blocks.{i}.mlp.up", "m d"),
    ),
    implies={"activation": "silu"},
)
_POSITIONS = ("embed.pos", "embed.pos_cls", "embed.pos_reg")


def stem() -> tuple[Entry, ...]:
    """Build tokens, positions and patches."""
    return (
        *rule("cls_token: 1 1 d", "embed.cls: d", optional=True),
        *rule("reg_token: 1 r d", "embed.reg: r d", optional=True),
        Choice(
            "position",
            square="n",
            options=(
                Option(
                    "class+patches",
                    rule("pos_embed: 1 (1+n) d", "embed.pos_cls: d", "embed.pos: n d"),
                    needs=("embed.cls",),
                    without=("embed.reg",),
                ),
                Option(
                    "class+registers+patches",
                    rule("pos_embed: 1 (1+r+n) d", "embed.pos_cls: d", "embed.pos_reg: r d", "embed.pos: n d"),
                    needs=("embed.cls", "embed.reg"),
                ),
                Option("patches", rule("pos_embed: 1 n d", "embed.pos: n d")),
                Option("none", without=_POSITIONS),
            ),
        ),
        *linear("patch_embed.proj", "embed.patch", "d c p q", bias=False),
    )


def block(attention: Choice, mlp: Choice) -> tuple[Entry, ...]:
    """Build a block around its attention's projections and its MLP."""
    return (
        *norm(BLOCK + "norm1", "blocks.{i}.norm1"),
        attention,
        *linear(BLOCK + "attn.proj", "blocks.{i}.attn.out", "d a"),
        *rule(BLOCK + "gamma_1: d", "blocks.{i}.ls1: d", optional=True, group="layer_scale"),
        *norm(BLOCK + "norm2", "blocks.{i}.norm2"),
        mlp,
        *rule(BLOCK + "gamma_2: d", "blocks.{i}.ls2: d", optional=True, group="layer_scale"),
    )


def end() -> tuple[Entry, ...]:
    """Build the final norm, before pooling or after, and the classifier."""
    return (
        *norm("norm", "norm", optional=True),
        *norm("fc_norm", "pool.norm", optional=True),
        *together(zeroed("head", "head", "o d"), "head"),
    )


def fused_qv() -> tuple[Entry, ...]:
    """Build one projection of q, k, v, with the biases of q and v apart."""
    return (
        *rule(BLOCK + "attn.qkv.weight: (* a) d", "blocks.{i}.attn.{q,k,v}.weight: a d"),
        *rule(
            BLOCK + "attn.{q_bias,v_bias}: a",
            "blocks.{i}.attn.{q,v}.bias: a",
            optional=True,
            group="qkv_bias",
            fill=QV,
        ),
    )


_WITH_KEYS = (
    *rule(BLOCK + "attn.qkv.weight: (* a) d", "blocks.{i}.attn.{q,k,v}.weight: a d"),
    *rule(BLOCK + "attn.qkv.bias: (* a)", "blocks.{i}.attn.{q,k,v}.bias: a"),
)
_MIXED = rule("rope.freqs: 2 * h f2", "blocks.{i}.attn.rope: 2 h f2")
_EITHER_SIDE: dict[str, Any] = {"position": "rope", "rope_order": ("rows", "columns")}


def attention(*, table: bool = True, **rotary_only: tuple[str, ...]) -> Choice:
    """Build the projections of q, k and v as timm's Eva has them.

    `rotary_only` is what AttentionRope goes with; beside a `table` it is read on request.
    """
    return Choice(
        "attention",
        (
            Option("fused", fused_qv()),
            Option(
                "split",
                (
                    *rule(BLOCK + "attn.{q_proj,k_proj,v_proj}.weight: a d", "blocks.{i}.attn.{q,k,v}.weight: a d"),
                    *rule(
                        BLOCK + "attn.{q_proj,v_proj}.bias: a",
                        "blocks.{i}.attn.{q,v}.bias: a",
                        optional=True,
                        group="qkv_bias",
                        fill=QV,
                    ),
                ),
            ),
            Option("AttentionRope", _WITH_KEYS, only=rotary_only, implies=_EITHER_SIDE),
            # With a table beside it the keys are those of DeiT-III, unless frequencies are there.
            Option(
                "AttentionRope+mixed", (*_WITH_KEYS, *_MIXED), implies=_EITHER_SIDE | {"rope_layout": "interleaved"}
            ),
            *((Option("AttentionRope+table", _WITH_KEYS, implies=_EITHER_SIDE, asked=True),) if table else ()),
        ),
    )


def gated() -> Choice:
    """Build the first linear of the MLP as timm's Eva has it: plain, or gated and packed, or gated and apart."""
    return Choice(
        "mlp",
        (
            UNGATED,
            Option(
                "GluMlp",
                (
                    *rule(BLOCK + "mlp.fc1.weight: (* m) d", "blocks.{i}.mlp.{gate,up}.weight: m d"),
                    *rule(BLOCK + "mlp.fc1.bias: (* m)", "blocks.{i}.mlp.{gate,up}.bias: m"),
                ),
                implies={"activation": "silu"},
                without=("blocks.{i}.mlp.norm.weight",),
            ),
            SWIGLU,
        ),
    )
