"""BEiT (microsoft/unilm), which timm's Beit takes over: relative positions, no key bias, LayerScale as gamma.

Source: microsoft/unilm, beit/modeling_finetune.py and modeling_pretrain.py, beit2/, 768a3c8; huggingface/
pytorch-image-models, timm/models/beit.py, 1.0.31. The table of relative positions is per block, or one for all; its
last three rows are those of the class token. Fine-tuned models norm the mean of the patches (`fc_norm`). The authors'
code keeps the index into the table as a buffer of the file and opens none without it; timm's opens none with it.
"""

from vitconv.dialects._eva import SWIGLU, UNGATED
from vitconv.dialects._parts import BLOCK, PLAIN, TABLE, buffers, why
from vitconv.layout.dialect import Dialect
from vitconv.layout.rule import Choice, Forbid, Option, const, linear, norm, rule

_K = "blocks.{i}.attn.k.bias"
_QV: dict[str, float | str] = {f"blocks.{{i}}.attn.{x}.bias": 0.0 for x in "qv"}
_TABLE = "relative_position_bias_table: (l+3) h"

DIALECT = Dialect(
    name="beit",
    title="BEiT of microsoft/unilm and timm",
    source="microsoft/unilm beit/modeling_finetune.py, 768a3c8; timm/models/beit.py, 1.0.31",
    library="timm",
    implies=PLAIN | {"position": ("relative", *TABLE)},
    author={
        "norm_eps": 1e-6,
        "final_norm_eps": 1e-6,
        "activation": "gelu",
    },
    entries=(
        *rule("cls_token: 1 1 d", "embed.cls: d"),
        *rule("mask_token: 1 1 d", "embed.mask: d", optional=True),
        *rule("pos_embed: 1 (1+n) d", "embed.pos_cls: d", "embed.pos: n d", optional=True),
        *linear("patch_embed.proj", "embed.patch", "d c p q"),
        Choice(
            "relative_positions",
            (
                Option(
                    "per-block",
                    rule(f"{BLOCK}attn.{_TABLE}", "blocks.{i}.attn.rel_pos: l h", "blocks.{i}.attn.rel_pos_cls: 3 h"),
                    bind={"r": f"{BLOCK}attn."},
                    author={"position": "relative"},
                ),
                Option(
                    "shared",
                    rule(f"rel_pos_bias.{_TABLE}", "rel_pos: l h", "rel_pos_cls: 3 h"),
                    bind={"r": "rel_pos_bias."},
                    author={"position": "relative"},
                ),
                # A network with a table of absolute positions, or with none.
                Option("none", without=("rel_pos", "blocks.{i}.attn.rel_pos"), implies={"position": TABLE}),
            ),
        ),
        buffers(
            *const("{r}relative_position_index: j k", "class-index", optional=False),
            only={"relative_positions": ("per-block", "shared")},
        ),
        *norm(BLOCK + "norm1", "blocks.{i}.norm1"),
        *rule(BLOCK + "attn.qkv.weight: (* a) d", "blocks.{i}.attn.{q,k,v}.weight: a d"),
        *rule(
            BLOCK + "attn.{q_bias,v_bias}: a",
            "blocks.{i}.attn.{q,v}.bias: a",
            optional=True,
            group="qkv_bias",
            fill=_QV,
        ),
        *linear(BLOCK + "attn.proj", "blocks.{i}.attn.out", "d a"),
        *rule(BLOCK + "gamma_1: d", "blocks.{i}.ls1: d", optional=True, group="layer_scale"),
        *norm(BLOCK + "norm2", "blocks.{i}.norm2"),
        Choice("mlp", (UNGATED, SWIGLU)),
        *norm(BLOCK + "mlp.norm", "blocks.{i}.mlp.norm", "m", optional=True),
        *linear(BLOCK + "mlp.fc2", "blocks.{i}.mlp.down", "d m"),
        *rule(BLOCK + "gamma_2: d", "blocks.{i}.ls2: d", optional=True, group="layer_scale"),
        Choice(
            "pooling",
            (
                Option("token", norm("norm", "norm"), without=("pool.norm.weight",), author={"pooling": "token"}),
                Option("mean", norm("fc_norm", "pool.norm"), without=("norm.weight",), author={"pooling": "avg"}),
                Option("none", without=("norm.weight", "pool.norm.weight")),
            ),
        ),
        *linear("head", "head", "o d", optional=True),
        *linear("lm_head", "mim", "s d", optional=True),
    ),
    forbids=(
        Forbid(r"^rel_pos_bias\.", "relative positions by block and for all blocks at once have no place elsewhere"),
    ),
    derived={_K: "zero"},
    cannot=why("embed.norm", "pool.dense", "dist", "map")
    | {
        r"^embed\.(reg|pos_reg)$": "register tokens",
        r"\.attn\.[qk]_norm\.": "norms of queries and keys",
    },
    equal=(("a", "d"),),
    # Without relative positions, and without what masked pretraining adds, the keys are those of timm's Eva.
    under="timm-eva",
)
