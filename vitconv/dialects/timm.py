"""timm's VisionTransformer: fused qkv in q, k, v order, heads contiguous, class token first.

Source: huggingface/pytorch-image-models, timm/models/vision_transformer.py, 1.0.31, and deit.py for distilled heads.
"""

from dataclasses import replace

from vitconv.dialects._parts import TABLE, pool_head, together, zeroed
from vitconv.layout.dialect import Dialect
from vitconv.layout.rule import Choice, Entry, Forbid, Option, Rule, const, linear, norm, rule

_B = "blocks.{i}."

# {key: (canonical name, axis)} of every norm; the two of a block are always there.
_BLOCK_NORMS = {_B + "norm1": ("blocks.{i}.norm1", "d"), _B + "norm2": ("blocks.{i}.norm2", "d")}
_OTHER_NORMS = {
    "norm_pre": ("embed.norm", "d"),
    _B + "attn.q_norm": ("blocks.{i}.attn.q_norm", "e"),
    _B + "attn.k_norm": ("blocks.{i}.attn.k_norm", "e"),
    _B + "attn.norm": ("blocks.{i}.attn.norm", "a"),
    _B + "mlp.norm": ("blocks.{i}.mlp.norm", "m"),
    "norm": ("norm", "d"),
    "fc_norm": ("pool.norm", "d"),
}


def _norms(*, bias: bool) -> tuple[Entry, ...]:
    """Build all norms of one kind: LayerNorm with a bias each, or RmsNorm without."""
    out: list[Entry] = []
    for optional, norms in ((False, _BLOCK_NORMS), (True, _OTHER_NORMS)):
        for key, (part, axis) in norms.items():
            both = norm(key, part, axis, optional=optional)
            out += both if bias else rule(f"{key}.weight: {axis}", f"{part}.weight: {axis}", optional=optional)
    return tuple(out)


def _biases(pairs: dict[str, tuple[str, ...]]) -> tuple[Entry, ...]:
    """Build the biases that `proj_bias` switches together: those of the output projection and of the MLP."""
    return tuple(
        r
        for whole, parts in pairs.items()
        for r in rule(
            whole,
            *parts,
            optional=True,
            group="proj_bias",
            fill={name: 0.0 for p in parts for name in _names(p)},
        )
    )


def _names(part: str) -> list[str]:
    key = part.partition(":")[0]
    return [key.replace("{gate,up}", x) for x in ("gate", "up")] if "{gate,up}" in key else [key]


_USUAL = {"norm_layer": ("LayerNorm",), "mlp": ("Mlp",), "pre_norm": ("false",)}
_ZEROS = {f"blocks.{{i}}.attn.{x}.bias": 0.0 for x in "qkv"}


def _sparse(rules: tuple[Rule, ...]) -> tuple[Entry, ...]:
    return tuple(replace(r, sparse=True) for r in rules)


def _weight(whole: str, axes: str) -> tuple[Entry, ...]:
    return rule(f"{_B}attn.qkv.weight: {whole} d", f"blocks.{{i}}.attn.{{q,k,v}}.weight: {axes} d")


def _bias(whole: str, axes: str) -> tuple[Entry, ...]:
    return rule(f"{_B}attn.qkv.bias: {whole}", f"blocks.{{i}}.attn.{{q,k,v}}.bias: {axes}", optional=True, fill=_ZEROS)


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
                    _B + "attn.qkv.bias: (* a)",
                    "blocks.{i}.attn.q.bias: a",
                    "blocks.{i}.attn.k_masked: a",
                    "blocks.{i}.attn.v.bias: a",
                ),
                *const(_B + "attn.qkv.bias_mask: (* a)", (1.0, 0.0, 1.0), dtype="float", optional=False),
            ),
            only=_USUAL,
            foreign=True,
        ),
        # Some layers with one bias for q, k and v, some with BEiT's two.
        Option(
            "mixed",
            (
                *_weight("(* a)", "a"),
                *_sparse(rule(_B + "attn.qkv.bias: (* a)", "blocks.{i}.attn.{q,k,v}.bias: a", optional=True)),
                *_sparse(rule(_B + "attn.{q_bias,v_bias}: a", "blocks.{i}.attn.{q,v}.bias: a", optional=True)),
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
        # The patch projection has no bias exactly when a norm follows the embeddings.
        Choice(
            "pre_norm",
            (
                Option(
                    "false",
                    rule("patch_embed.proj.bias: d", "embed.patch.bias: d", fill={"embed.patch.bias": 0.0}),
                    without=("embed.norm.weight",),
                ),
                Option("true", needs=("embed.norm.weight",)),
            ),
        ),
        Choice(
            "norm_layer",
            (
                Option("LayerNorm", _norms(bias=True), implies={"norm_kind": "layernorm"}),
                Option("RmsNorm", _norms(bias=False), implies={"norm_kind": "rmsnorm"}),
            ),
        ),
        _QKV,
        *linear(_B + "attn.proj", "blocks.{i}.attn.out", "d a", bias=None),
        *_biases({_B + "attn.proj.bias: d": ("blocks.{i}.attn.out.bias: d",)}),
        *rule(_B + "ls1.gamma: d", "blocks.{i}.ls1: d", optional=True, group="layer_scale"),
        Choice(
            "mlp",
            (
                Option(
                    "Mlp",
                    (
                        *linear(_B + "mlp.fc1", "blocks.{i}.mlp.up", "m d", bias=None),
                        *_biases({_B + "mlp.fc1.bias: m": ("blocks.{i}.mlp.up.bias: m",)}),
                    ),
                    without=("blocks.{i}.mlp.gate.weight",),
                ),
                Option(
                    "SwiGLUPacked",
                    (
                        *rule(_B + "mlp.fc1.weight: (* m) d", "blocks.{i}.mlp.{gate,up}.weight: m d"),
                        *_biases({_B + "mlp.fc1.bias: (* m)": ("blocks.{i}.mlp.{gate,up}.bias: m",)}),
                    ),
                ),
                Option(
                    "SwiGLU",
                    (
                        *linear(_B + "mlp.fc1_g", "blocks.{i}.mlp.gate", "m d", bias=None),
                        *linear(_B + "mlp.fc1_x", "blocks.{i}.mlp.up", "m d", bias=None),
                        *_biases(
                            {
                                _B + "mlp.fc1_g.bias: m": ("blocks.{i}.mlp.gate.bias: m",),
                                _B + "mlp.fc1_x.bias: m": ("blocks.{i}.mlp.up.bias: m",),
                            }
                        ),
                    ),
                ),
            ),
        ),
        *linear(_B + "mlp.fc2", "blocks.{i}.mlp.down", "d m", bias=None),
        *_biases({_B + "mlp.fc2.bias: d": ("blocks.{i}.mlp.down.bias: d",)}),
        *rule(_B + "ls2.gamma: d", "blocks.{i}.ls2: d", optional=True, group="layer_scale"),
        *together(
            pool_head(
                "attn_pool.latent: 1 1 d",
                (
                    *linear("attn_pool.q", "pool.q", "u d"),
                    *rule("attn_pool.kv.weight: (* u) d", "pool.{k,v}.weight: u d"),
                    *rule("attn_pool.kv.bias: (* u)", "pool.{k,v}.bias: u"),
                    *linear("attn_pool.proj", "pool.out", "d u"),
                ),
                "attn_pool.norm",
                ("attn_pool.mlp.fc1", "attn_pool.mlp.fc2"),
            ),
            "attn_pool",
        ),
        # CLIP's projection is a classifier without a bias.
        *together(zeroed("head", "head", "o d"), "head"),
        *linear("head_dist", "head_dist", "o d", optional=True),
    ),
    forbids=(
        Forbid(r"^attn_pool\.(q_norm|k_norm|pos_embed)", "norms and positions of its own in an attention-pooling head"),
        Forbid(r"\.in_proj\.|\.in_norm\.", "parallel blocks (ParallelScalingBlock) have no place in other layouts"),
        Forbid(r"\.(attns|ffns)\.\d", "parallel branches (ParallelThingsBlock) have no place in other layouts"),
        Forbid(r"\.attn\.gate\.", "gated attention has no place in other layouts"),
        Forbid(r"\.lambda_[qk]", "differential attention has no place in other layouts"),
        Forbid(
            r"attn\.(q_bias|v_bias)$|\.gamma_[12]$", "this is the layout of BEiT, EVA or CaiT, not of VisionTransformer"
        ),
        Forbid(r"rel_pos|relative_position", "relative positions have no place in other plain layouts"),
        Forbid(
            r"^patch_embed\.(norm|backbone)\.", "a patch embedding with a norm or a stem of its own (AIMv2, hybrids)"
        ),
    ),
    cannot={
        r"^trunk_norm\.": "a norm at the end of the trunk and a second final norm after it",
        r"^embed\.mask$": "a mask token",
        r"^embed\.patch\.bias$": "a bias of the patch projection beside a norm before the blocks",
        r"^pool\.dense\.": "a pooler",
    },
    equal=(("a", "d"),),
)
