"""timm's NaFlexVit with the blocks of its Eva: EVA-02 and DINOv3 that are built as NaFlex.

Source: huggingface/pytorch-image-models, timm/models/naflexvit.py and eva.py, 1.0.31. Neither the periods of rotary
positions nor the key bias of zeros are stored.
"""

from vitconv.dialects._eva import attention, block, end, gated
from vitconv.dialects._naflex import MIXED, PREFIX, stem
from vitconv.dialects._parts import BLOCK, PLAIN, TABLE, why
from vitconv.dialects._timm import pre_norm
from vitconv.layout.dialect import Dialect
from vitconv.layout.rule import Forbid, linear, norm

DIALECT = Dialect(
    name="timm-naflex-eva",
    title="timm NaFlexVit with the blocks of Eva",
    source="huggingface/pytorch-image-models timm/models/naflexvit.py and eva.py, 1.0.31",
    library="timm",
    implies={**PLAIN, "norm_placement": ("pre", "res-post"), "position": (*TABLE, "rope")},
    entries=(
        *stem(("learned", "rope")),
        pre_norm("embeds.proj.bias"),
        *norm("norm_pre", "embed.norm", optional=True),
        *block(attention(table=False, position=("none",)), gated()),
        *norm(BLOCK + "attn.q_norm", "blocks.{i}.attn.q_norm", "e", optional=True),
        *norm(BLOCK + "attn.k_norm", "blocks.{i}.attn.k_norm", "e", optional=True),
        *norm(BLOCK + "attn.norm", "blocks.{i}.attn.norm", "a", optional=True),
        *norm(BLOCK + "mlp.norm", "blocks.{i}.mlp.norm", "m", optional=True),
        *linear(BLOCK + "mlp.fc2", "blocks.{i}.mlp.down", "d m"),
        *end(),
    ),
    forbids=(
        MIXED,
        Forbid(r"^attn_pool\.", "an attention-pooling head after the blocks of Eva is not carried"),
        Forbid(r"^blocks\.\d+\.(attn\.)?gate\.", "gated attention has no place in other layouts"),
    ),
    derived={"blocks.{i}.attn.k.bias": "zero", "rope.periods": "rope-periods:100"},
    cannot=why("pool.dense", "map")
    | PREFIX
    | {
        r"^embed\.mask$": "a mask token",
        r"^embed\.pixel_norm\.": "a norm of the pixels of a patch",
        r"^norm_cls\.": "a second final norm for the class token and the registers",
        r"^blocks.*rel_pos|^rel_pos": "relative positions; beit has",
    },
    equal=(("a", "d"),),
    # Without biases and LayerScale the keys are those of NaFlexVit with its own blocks.
    under="timm-naflex",
)
