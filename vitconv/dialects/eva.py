"""EVA-02 (baaivision), as its authors hold it: q, k, v apart with biases beside them, SwiGLU as w1, w2, w3.

Source: baaivision/EVA, EVA-02/asuka/modeling_finetune.py and rope.py, 5623d08. Rotary positions pair neighbours
(interleaved) and are stored as waves, compared when they are read and made anew when they are written. EVA-01's keys
are those of timm's Eva.
"""

from vitconv.dialects._eva import QV, block, stem
from vitconv.dialects._parts import BLOCK, PLAIN, ROWS_FIRST, TABLE, why
from vitconv.layout.dialect import Dialect
from vitconv.layout.rule import Choice, Forbid, Option, const, linear, norm, rule

# One module, which every block names again.
_WAVES = tuple(
    c
    for path in ("rope", BLOCK + "attn.rope")
    for wave in ("cos", "sin")
    for c in const(f"{path}.freqs_{wave}: n e", f"rope-{wave}", dtype="float", written=True)
)

_SUB_LN = ("blocks.{i}.attn.norm.weight", "blocks.{i}.mlp.norm.weight")

DIALECT = Dialect(
    name="eva",
    title="EVA-02 of baaivision",
    source="baaivision/EVA EVA-02/asuka/modeling_finetune.py, 5623d08",
    library="eva",
    implies=PLAIN | ROWS_FIRST | {"position": (*TABLE, "rope"), "rope_layout": "interleaved", "rope_theta": 1e4},
    author={"norm_eps": 1e-6, "final_norm_eps": 1e-6},
    entries=(
        *stem(),
        *rule("mask_token: 1 1 d", "embed.mask: d", optional=True),
        *_WAVES,
        *block(
            Choice(
                "attention",
                (
                    # The author's code splits them where it norms within the branches, and there only.
                    Option(
                        "fused",
                        rule(BLOCK + "attn.qkv.weight: (* a) d", "blocks.{i}.attn.{q,k,v}.weight: a d"),
                        without=_SUB_LN,
                    ),
                    Option(
                        "split",
                        rule(BLOCK + "attn.{q_proj,k_proj,v_proj}.weight: a d", "blocks.{i}.attn.{q,k,v}.weight: a d"),
                    ),
                ),
            ),
            Choice(
                "mlp",
                (
                    # xformers' SwiGLU, which holds both as one: the tiny and small networks.
                    Option(
                        "packed",
                        (
                            *rule(BLOCK + "mlp.w12.weight: (* m) d", "blocks.{i}.mlp.{gate,up}.weight: m d"),
                            *rule(BLOCK + "mlp.w12.bias: (* m)", "blocks.{i}.mlp.{gate,up}.bias: m"),
                            *linear(BLOCK + "mlp.w3", "blocks.{i}.mlp.down", "d m"),
                        ),
                        without=_SUB_LN,
                        implies={"activation": "silu"},
                    ),
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
                        # With the head of pre-training the keys are BEiT's, as EVA-01's are.
                        without=("blocks.{i}.mlp.gate.weight", "mim.weight"),
                        author={"activation": "gelu"},
                    ),
                ),
            ),
        ),
        *rule(
            BLOCK + "attn.{q_bias,v_bias}: a", "blocks.{i}.attn.{q,v}.bias: a", optional=True, group="qkv_bias", fill=QV
        ),
        *norm(BLOCK + "attn.inner_attn_ln", "blocks.{i}.attn.norm", "a", optional=True),
        Choice(
            "pooling",
            (
                Option("token", norm("norm", "norm"), without=("pool.norm.weight",), author={"pooling": "token"}),
                Option("mean", norm("fc_norm", "pool.norm"), without=("norm.weight",), author={"pooling": "avg"}),
                Option("none", without=("norm.weight", "pool.norm.weight")),
            ),
        ),
        *linear("head", "head", "o d", optional=True),
        # Pre-training predicts the features of a CLIP.
        *linear("lm_head", "mim", "s d", optional=True),
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
