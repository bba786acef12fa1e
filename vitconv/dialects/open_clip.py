"""open_clip's own vision tower; a tower from timm under `visual.trunk.` is read as timm's.

Source: mlfoundations/open_clip, src/open_clip/transformer.py and model.py, 3.3.0. The activation is GELU unless the
configuration, or a name that ends in -quickgelu, says quick_gelu; head widths other than 64 are in the configuration
alone, and so are the pooling and, where the patches are averaged, whether the last norm stands after it
(`final_ln_after_pool`). Dropping patches (`patch_dropout`) is of training only and leaves no tensor.
"""

from vitconv.dialects._clip import CANNOT, CLIP, DERIVED, RESNET, projection, tower
from vitconv.layout.dialect import Dialect
from vitconv.layout.rule import Choice, Entry, Forbid, Option, norm, rule

_B = "transformer.resblocks.{i}."
_POOLER = ("coca.queries",)


def _coca(*, fused: bool) -> tuple[Entry, ...]:
    """Build CoCa's pooler: queries attend to the tokens, in a width of their own; a norm and the projection follow.

    Of the width of the tokens it is `fused`: torch's attention keeps its weights as one.
    """
    p = "attn_pool."
    weights = (
        rule(p + "attn.in_proj_weight: (* v2) d", "coca.{q,k,v}.weight: v2 d")
        if fused
        else (
            *rule(p + "attn.q_proj_weight: v2 v", "coca.q.weight: v2 v"),
            *rule(p + "attn.{k,v}_proj_weight: v2 d", "coca.{k,v}.weight: v2 d"),
        )
    )
    return (
        *rule(p + "query: k v", "coca.queries: k v"),
        *norm(p + "ln_q", "coca.norm_q", "v"),
        *norm(p + "ln_k", "coca.norm_k", "d"),
        *weights,
        *rule(p + "attn.in_proj_bias: (* v2)", "coca.{q,k,v}.bias: v2"),
        *rule(p + "attn.out_proj.weight: v v2", "coca.out.weight: v v2"),
        *rule(p + "attn.out_proj.bias: v", "coca.out.bias: v"),
        *norm("ln_post", "coca.norm", "v"),
        *rule("proj: v o", "coca.proj: v o", optional=True),
    )


DIALECT = Dialect(
    name="open-clip",
    title="open_clip, vision tower",
    source="mlfoundations/open_clip src/open_clip/transformer.py, 3.3.0",
    library="open_clip",
    implies=CLIP | {"pooling": ("token", "avg", "none")},
    author={"norm_eps": 1e-5, "final_norm_eps": 1e-5, "embed_norm_eps": 1e-5, "qk_norm_eps": 1e-5},
    entries=(
        *tower(),
        *norm("ln_pre", "embed.norm", optional=True),
        *norm(_B + "attn.ln_q", "blocks.{i}.attn.q_norm", "e", optional=True),
        *norm(_B + "attn.ln_k", "blocks.{i}.attn.k_norm", "e", optional=True),
        *norm(_B + "attn.ln_inner", "blocks.{i}.attn.norm", "a", optional=True),
        *norm(_B + "mlp.ln", "blocks.{i}.mlp.norm", "m", optional=True),
        *rule(_B + "ls_1.gamma: d", "blocks.{i}.ls1: d", optional=True, group="layer_scale"),
        *rule(_B + "ls_2.gamma: d", "blocks.{i}.ls2: d", optional=True, group="layer_scale"),
        Choice(
            "last_norm",
            (
                Option(
                    "before-pooling", (*norm("ln_post", "norm"), *projection("proj", transposed=True)), without=_POOLER
                ),
                # `final_ln_after_pool`, which no key tells: of the class token alone it is the same.
                Option(
                    "after-pooling",
                    (*norm("ln_post", "pool.norm"), *projection("proj", transposed=True)),
                    without=_POOLER,
                    asked=True,
                ),
                Option("attentional-pooler", _coca(fused=False)),
                # As its code has it where both widths are one; a file tells it, and so does `last_norm` when writing.
                Option("attentional-pooler-fused", _coca(fused=True)),
            ),
        ),
    ),
    forbids=(
        Forbid(r"^attn_pool_contrastive\.", "CoCa's two poolers at once (parallel, cascade) are not carried"),
        RESNET,
        Forbid(r"attn\.(head_scale|logit_scale)$", "scales of heads and cosine attention have no place elsewhere"),
        Forbid(r"\.ln_attn\.", "a norm after the attention (scale_attn) has no place elsewhere"),
    ),
    derived=DERIVED,
    cannot={k: v for k, v in CANNOT.items() if "_norm" not in k},
    equal=(("a", "d"), ("v2", "v")),
)
