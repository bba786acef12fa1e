"""timm's Eva: EVA, EVA-02, and DINOv3, RoPE-ViT and Perception Encoder as timm has them.

Source: huggingface/pytorch-image-models, timm/models/eva.py, 1.0.31. The periods of the rotary positions are not
stored, nor is the key bias of zeros. Blocks that norm after the branch have the same keys.
"""

from vitconv.dialects._eva import attention, block, end, gated, stem
from vitconv.dialects._parts import BLOCK, CONVOLUTIONS, PLAIN, TABLE, why
from vitconv.dialects._timm import map_pool
from vitconv.layout.dialect import Dialect
from vitconv.layout.rule import Doubt, Forbid, linear, norm

DIALECT = Dialect(
    name="timm-eva",
    title="timm Eva",
    source="huggingface/pytorch-image-models timm/models/eva.py, 1.0.31",
    library="timm",
    implies={
        **PLAIN,
        "norm_placement": ("pre", "res-post"),
        "position": (*TABLE, "rope"),
        "rope_places": ("separate",),
    },
    entries=(
        *stem(),
        *norm("norm_pre", "embed.norm", optional=True),
        *block(attention(position=("none",)), gated()),
        *norm(BLOCK + "attn.q_norm", "blocks.{i}.attn.q_norm", "e", optional=True),
        *norm(BLOCK + "attn.k_norm", "blocks.{i}.attn.k_norm", "e", optional=True),
        *norm(BLOCK + "attn.norm", "blocks.{i}.attn.norm", "a", optional=True),
        *norm(BLOCK + "mlp.norm", "blocks.{i}.mlp.norm", "m", optional=True),
        *linear(BLOCK + "mlp.fc2", "blocks.{i}.mlp.down", "d m"),
        *map_pool(),
        *end(),
    ),
    forbids=(
        CONVOLUTIONS,
        Forbid(r"^attn_pool\.(q_norm|k_norm|pos_embed)", "norms and positions of its own in an attention-pooling head"),
        Forbid(
            r"\.attn\.k_proj\.bias$",
            "Sapiens 2: a bias of keys beside projections apart, LayerScale of attention alone, and in its large"
            " networks fewer heads of keys and values than of queries",
        ),
        Forbid(r"^blocks\.\d+\.(attn\.)?gate\.", "gated attention has no place in other layouts"),
    ),
    derived={"blocks.{i}.attn.k.bias": "zero", "rope.periods": "rope-periods:100"},
    cannot=why("pool.dense", "dist")
    | {
        r"^embed\.mask$": "a mask token",
        r"^norm_cls\.": "a second final norm for the class token and the registers",
        r"^blocks.*rel_pos|^rel_pos": "relative positions; beit has",
    },
    # EVA-01: of timm's networks with biases of q and v alone, a plain MLP and a table, none turns queries and keys.
    doubts=(
        Doubt(
            {},
            needs=("embed.pos", "embed.pos_cls", "blocks.0.attn.q.bias"),
            without=("embed.reg", "embed.norm.weight", "blocks.0.mlp.gate.weight", "blocks.0.attn.k.bias"),
            usual={"position": "learned"},
        ),
    ),
    equal=(("a", "d"),),
    # Without biases and LayerScale the keys are those of VisionTransformer.
    under="timm",
)
