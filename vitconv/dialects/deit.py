"""DeiT (facebookresearch): timm's old keys, with a distillation token, and DeiT III with LayerScale as gamma.

Source: facebookresearch/deit, models.py (DeiT and its distilled form) and models_v2.py (DeiT III, and the
parallel branches of "Three things"), 7e160fe. A distilled model answers with the mean of both heads. DeiT III adds no
position to the class token.
"""

from vitconv.dialects._fb import CLASS, CLASS_AND_PATCHES, PATCH, blocks, first
from vitconv.dialects._parts import BLOCK, CONVOLUTIONS
from vitconv.layout.rule import Choice, Doubt, Option, linear, norm, rule

_LS = ("blocks.{i}.ls1", "blocks.{i}.ls2")
_TWIN = ("blocks.{i}.twin.norm1.weight",)
_T = "blocks.{i}.twin."
# Layer_scale_init_Block_paralx2 and Block_paralx2: two branches of each kind, the second under names of its own.
_PARALLEL = (
    *rule("pos_embed: 1 n d", "embed.pos: n d"),
    *norm(BLOCK + "norm11", _T + "norm1"),
    *rule(BLOCK + "attn1.qkv.weight: (* a) d", _T + "attn.{q,k,v}.weight: a d"),
    *rule(BLOCK + "attn1.qkv.bias: (* a)", _T + "attn.{q,k,v}.bias: a", optional=True),
    *linear(BLOCK + "attn1.proj", _T + "attn.out", "d a"),
    *norm(BLOCK + "norm21", _T + "norm2"),
    *linear(BLOCK + "mlp1.fc1", _T + "mlp.up", "m d"),
    *linear(BLOCK + "mlp1.fc2", _T + "mlp.down", "d m"),
)
_DIST = ("embed.dist",)

DIALECT = first(
    "deit",
    "DeiT of facebookresearch",
    "deit models.py and models_v2.py, 7e160fe",
    (
        *CLASS,
        Choice(
            "generation",
            square="n",
            options=(
                Option("deit", (*CLASS_AND_PATCHES,), without=(*_LS, *_DIST)),
                Option(
                    "distilled",
                    (
                        *rule("dist_token: 1 1 d", "embed.dist: d"),
                        *rule("pos_embed: 1 (1+1+n) d", "embed.pos_cls: d", "embed.pos_dist: d", "embed.pos: n d"),
                        *linear("head_dist", "head_dist", "o d", optional=True),
                    ),
                    without=_LS,
                ),
                Option(
                    "deit-3",
                    (
                        *rule("pos_embed: 1 n d", "embed.pos: n d"),
                        *rule("blocks.{i}.gamma_1: d", "blocks.{i}.ls1: d"),
                        *rule("blocks.{i}.gamma_2: d", "blocks.{i}.ls2: d"),
                    ),
                    without=_DIST,
                ),
                # The blocks of models_v2.py without LayerScale.
                Option("deit-3-plain", rule("pos_embed: 1 n d", "embed.pos: n d"), without=(*_LS, *_DIST, *_TWIN)),
                Option(
                    "parallel",
                    (
                        *_PARALLEL,
                        *rule(BLOCK + "gamma_{1,2}: d", "blocks.{i}.ls{1,2}: d"),
                        *rule(BLOCK + "gamma_{1,2}_1: d", _T + "ls{1,2}: d"),
                    ),
                    needs=_TWIN,
                    without=_DIST,
                ),
                Option("parallel-plain", _PARALLEL, needs=_TWIN, without=(*_LS, *_DIST)),
            ),
        ),
        *PATCH,
        *blocks(),
        *norm("norm", "norm"),
        *linear("head", "head", "o d", optional=True),
    ),
    author={"pooling": "token", "position": "learned", "position_resize": "bicubic"},
    forbids=(CONVOLUTIONS,),
    # Without biases of q, k and v the keys of DeiT III are those of timm's Eva.
    under="timm-eva",
    doubts=(
        Doubt(
            {},
            needs=("embed.pos", "blocks.0.ls1", "blocks.0.attn.k.bias"),
            without=("embed.pos_cls",),
            note="read as DeiT III; timm's vit_*_rope_ape_* have the same keys, and turn queries and keys besides: if"
            " it is one of those, say --from timm-eva --set from.attention=AttentionRope+table",
        ),
    ),
)
