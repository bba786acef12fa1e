"""timm's VisionTransformer: fused qkv in q, k, v order, heads contiguous, class token first.

Source: huggingface/pytorch-image-models, timm/models/vision_transformer.py, 1.0.31, and deit.py for distilled heads.
"""

from dataclasses import replace

from vitconv.dialects._parts import BLOCK, CONVOLUTIONS, TABLE
from vitconv.dialects._timm import ENCODER, NO_PLACE, OWN_KINDS, branches, head, map_pool, norm_layer, pre_norm
from vitconv.layout.dialect import Dialect
from vitconv.layout.rule import Choice, Entry, Forbid, Option, Rule, const, linear, rule

_USUAL = {"norm_layer": ("LayerNorm",), "mlp": ("Mlp",), "pre_norm": ("false",)}
_ZEROS = {f"blocks.{{i}}.attn.{x}.bias": 0.0 for x in "qkv"}


def _sparse(rules: tuple[Rule, ...]) -> tuple[Entry, ...]:
    return tuple(replace(r, sparse=True) for r in rules)


def _weight(whole: str, axes: str) -> tuple[Entry, ...]:
    return rule(f"{BLOCK}attn.qkv.weight: {whole} d", f"blocks.{{i}}.attn.{{q,k,v}}.weight: {axes} d")


def _bias(whole: str, axes: str) -> tuple[Entry, ...]:
    return rule(
        f"{BLOCK}attn.qkv.bias: {whole}", f"blocks.{{i}}.attn.{{q,k,v}}.bias: {axes}", optional=True, fill=_ZEROS
    )


_QKV = Choice(
    "qkv",
    (
        Option("fused", (*_weight("(* a)", "a"), *_bias("(* a)", "a"))),
        # DINOv3's training multiplies the bias by a mask that is zero over k.
        Option(
            "masked",
            (
                *_weight("(* a)", "a"),
                *rule(
                    BLOCK + "attn.qkv.bias: (* a)",
                    "blocks.{i}.attn.q.bias: a",
                    "blocks.{i}.attn.k_masked: a",
                    "blocks.{i}.attn.v.bias: a",
                ),
                *const(BLOCK + "attn.qkv.bias_mask: (* a)", (1.0, 0.0, 1.0), dtype="float", optional=False),
            ),
            only=_USUAL,
            foreign=True,
        ),
        # Some layers with one bias for q, k and v, some with BEiT's two.
        Option(
            "mixed",
            (
                *_weight("(* a)", "a"),
                *_sparse(rule(BLOCK + "attn.qkv.bias: (* a)", "blocks.{i}.attn.{q,k,v}.bias: a", optional=True)),
                *_sparse(rule(BLOCK + "attn.{q_bias,v_bias}: a", "blocks.{i}.attn.{q,v}.bias: a", optional=True)),
            ),
            only=_USUAL,
            foreign=True,
        ),
        # Heads outside, q, k and v of one head inside; no shape tells it.
        Option(
            "per-head",
            (*_weight("(h * e)", "(h e)"), *_bias("(h * e)", "(h e)")),
            only=_USUAL,
            foreign=True,
            asked=True,
        ),
    ),
)

DIALECT = Dialect(
    name="timm",
    title="timm VisionTransformer",
    source="huggingface/pytorch-image-models timm/models/vision_transformer.py, 1.0.31",
    library="timm",
    implies={"norm_placement": ("pre", "res-post"), "kv_normalised": True, "attention": "softmax", "position": TABLE},
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
                # As DINOv2's registers are, under timm's names.
                Option(
                    "class+patches-registers-apart",
                    rule("pos_embed: 1 (1+n) d", "embed.pos_cls: d", "embed.pos: n d"),
                    needs=("embed.cls", "embed.reg"),
                    without=("embed.dist",),
                    only=_USUAL,
                    foreign=True,
                ),
                # Without a table the keys are also those of timm's Eva with rotary positions.
                Option(
                    "none",
                    without=("embed.pos", "embed.pos_cls", "embed.pos_dist", "embed.pos_reg"),
                    maybe={"position": ("rope",)},
                ),
            ),
        ),
        Choice(
            "stem",
            (
                Option("conv", rule("patch_embed.proj.weight: d c p q", "embed.patch.weight: d c p q")),
                # A linear layer over the pixels of a patch: channels first, or last.
                Option(
                    "linear-cpq",
                    rule("patch_embed.proj.weight: d (c p q)", "embed.patch.weight: d c p q"),
                    only=_USUAL,
                    foreign=True,
                ),
                Option(
                    "linear-pqc",
                    rule("patch_embed.proj.weight: d (p q c)", "embed.patch.weight: d c p q"),
                    only=_USUAL,
                    foreign=True,
                ),
            ),
        ),
        pre_norm("patch_embed.proj.bias"),
        norm_layer(),
        _QKV,
        *branches(),
        *map_pool(),
        Choice(
            "head",
            (
                Option("head", head(), without=("pool.dense.weight",)),
                # timm before 0.8: a layer and tanh before the classifier, as Google's networks of ImageNet-21k have.
                Option(
                    "pre_logits",
                    (
                        *linear("pre_logits.fc", "pool.dense", "d2 d"),
                        *linear("head", "head", "o d2", optional=True),
                    ),
                    only=_USUAL,
                    foreign=True,
                ),
            ),
        ),
        *linear("head_dist", "head_dist", "o d", optional=True),
    ),
    forbids=(
        *OWN_KINDS,
        CONVOLUTIONS,
        Forbid(
            r"attn\.(q_bias|v_bias)$|\.gamma_[12]$", "this is the layout of BEiT, EVA or CaiT, not of VisionTransformer"
        ),
        Forbid(r"rel_pos|relative_position", "relative positions have no place in other plain layouts"),
        Forbid(
            r"^patch_embed\.(norm|backbone)\.", "a patch embedding with a norm or a stem of its own (AIMv2, hybrids)"
        ),
    ),
    doubts=(ENCODER,),
    cannot=NO_PLACE,
    equal=(("a", "d"),),
)
