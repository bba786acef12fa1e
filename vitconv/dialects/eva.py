"""EVA-02 (baaivision), as its authors hold it: q, k, v apart with biases beside them, SwiGLU as w1, w2, w3.

Source: baaivision/EVA, EVA-02/asuka/modeling_finetune.py and rope.py, 5623d08. Rotary positions pair neighbours
(interleaved) and are stored as waves, which are compared and left out. EVA-01's keys are those of timm's Eva.
"""

from vitconv.dialects._eva import QV, block, end, stem
from vitconv.dialects._parts import BLOCK, PLAIN, TABLE, why
from vitconv.layout.dialect import Dialect
from vitconv.layout.rule import Choice, Forbid, Option, const, linear, norm, rule

# One module, which every block names again.
_WAVES = tuple(
    c
    for path in ("rope", BLOCK + "attn.rope")
    for wave in ("cos", "sin")
    for c in const(f"{path}.freqs_{wave}: n e", f"rope-{wave}", dtype="float")
)

DIALECT = Dialect(
    name="eva",
    title="EVA-02 of baaivision",
    source="baaivision/EVA EVA-02/asuka/modeling_finetune.py, 5623d08",
    library="eva",
    implies=PLAIN | {"position": (*TABLE, "rope"), "rope_layout": "interleaved", "rope_theta": 1e4},
    author={"norm_eps": 1e-6, "final_norm_eps": 1e-6, "position": "rope"},
    entries=(
        *stem(),
        *rule("mask_token: 1 1 d", "embed.mask: d", optional=True),
        *_WAVES,
        *block(
            Choice(
                "attention",
                (
                    Option(
                        "split",
                        rule(BLOCK + "attn.{q_proj,k_proj,v_proj}.weight: a d", "blocks.{i}.attn.{q,k,v}.weight: a d"),
                    ),
                    Option(
                        "fused",
                        rule(BLOCK + "attn.qkv.weight: (* a) d", "blocks.{i}.attn.{q,k,v}.weight: a d"),
                        only={"mlp": ("SwiGLU",)},
                    ),
                ),
            ),
            Choice(
                "mlp",
                (
                    Option(
                        "SwiGLU",
                        (
                            *linear(BLOCK + "mlp.w1", "blocks.{i}.mlp.gate", "m d"),
                            *linear(BLOCK + "mlp.w2", "blocks.{i}.mlp.up", "m d"),
                            *linear(BLOCK + "mlp.w3", "blocks.{i}.mlp.down", "d m"),
                            *norm(BLOCK + "mlp.ffn_ln", "blocks.{i}.mlp.norm", "m", optional=True),
                        ),
                        implies={"activation": "silu"},
                    ),
                    Option(
                        "Mlp",
                        (
                            *linear(BLOCK + "mlp.fc1", "blocks.{i}.mlp.up", "m d"),
                            *linear(BLOCK + "mlp.fc2", "blocks.{i}.mlp.down", "d m"),
                            *norm(BLOCK + "mlp.ffn_ln", "blocks.{i}.mlp.norm", "m", optional=True),
                        ),
                        only={"attention": ("split",)},
                        without=("blocks.{i}.mlp.gate.weight",),
                    ),
                ),
            ),
        ),
        *rule(
            BLOCK + "attn.{q_bias,v_bias}: a", "blocks.{i}.attn.{q,v}.bias: a", optional=True, group="qkv_bias", fill=QV
        ),
        *norm(BLOCK + "attn.inner_attn_ln", "blocks.{i}.attn.norm", "a", optional=True),
        *end(),
    ),
    forbids=(Forbid(r"relative_position", "relative positions beside EVA-02's rotary ones are not carried"),),
    derived={"blocks.{i}.attn.k.bias": "zero"},
    cannot=why("embed.norm", "pool.dense", "dist", "map")
    | {
        r"\.attn\.[qk]_norm\.": "norms of queries and keys",
        r"^rope\.periods$": "periods: it stores the waves themselves",
    },
    equal=(("a", "d"),),
    # Without its own names the keys are those of timm's Eva.
    under="timm-eva",
)
