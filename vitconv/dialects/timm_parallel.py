"""timm's VisionTransformer with two parallel branches of each kind in a block (ParallelThingsBlock).

Source: huggingface/pytorch-image-models, timm/models/vision_transformer.py, 1.0.31, `vit_small_patch16_18x2_224` and
`vit_base_patch16_18x2_224`; the idea is of facebookresearch/deit, models_v2.py.
"""

from vitconv.dialects._parts import BLOCK, PLAIN, together, why, zeroed
from vitconv.layout.dialect import Dialect
from vitconv.layout.rule import Choice, Entry, Forbid, Option, linear, norm, rule


def _branches(number: int, part: str) -> tuple[Entry, ...]:
    attn, mlp = f"{BLOCK}attns.{number}.", f"{BLOCK}ffns.{number}."
    zeros: dict[str, float | str] = {f"{part}attn.{x}.bias": 0.0 for x in "qkv"}
    return (
        *norm(attn + "norm", part + "norm1"),
        *rule(attn + "attn.qkv.weight: (* a) d", part + "attn.{q,k,v}.weight: a d"),
        *rule(attn + "attn.qkv.bias: (* a)", part + "attn.{q,k,v}.bias: a", optional=True, fill=zeros),
        *norm(attn + "attn.q_norm", part + "attn.q_norm", "e", optional=True),
        *norm(attn + "attn.k_norm", part + "attn.k_norm", "e", optional=True),
        *linear(attn + "attn.proj", part + "attn.out", "d a"),
        *rule(attn + "ls.gamma: d", part + "ls1: d", optional=True, group="layer_scale"),
        *norm(mlp + "norm", part + "norm2"),
        *linear(mlp + "mlp.fc1", part + "mlp.up", "m d"),
        *linear(mlp + "mlp.fc2", part + "mlp.down", "d m"),
        *rule(mlp + "ls.gamma: d", part + "ls2: d", optional=True, group="layer_scale"),
    )


DIALECT = Dialect(
    name="timm-parallel",
    title="timm VisionTransformer with parallel branches",
    source="huggingface/pytorch-image-models timm/models/vision_transformer.py, 1.0.31",
    library="timm",
    implies=PLAIN,
    author={"norm_eps": 1e-6, "final_norm_eps": 1e-6, "activation": "gelu"},
    entries=(
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
                Option("patches", rule("pos_embed: 1 n d", "embed.pos: n d")),
            ),
        ),
        *linear("patch_embed.proj", "embed.patch", "d c p q"),
        *_branches(0, "blocks.{i}."),
        *_branches(1, "blocks.{i}.twin."),
        *norm("norm", "norm", optional=True),
        *norm("fc_norm", "pool.norm", optional=True),
        *together(zeroed("head", "head", "o d"), "head"),
    ),
    forbids=(
        Forbid(r"\.(attns|ffns)\.[2-9]", "more than two parallel branches"),
        Forbid(r"\.(attn|mlp)\.norm\.", "norms before the output projection or inside the MLP of parallel branches"),
    ),
    cannot=why("embed.norm", "pool.dense", "dist", "map")
    | {r"^embed\.(mask|pos_reg)$": "a mask token or positions of registers", r"\.mlp\.gate\.": "a gated MLP (SwiGLU)"},
    equal=(("a", "d"),),
)
