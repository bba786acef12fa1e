"""What xformers' factory keeps the same in every release: wrappers, feed-forwards, embeddings.

Source: facebookresearch/xformers, xformers/factory/block_factory.py, xformers/components/residual.py (wrappers),
xformers/components/feedforward/, xformers/components/positional_embedding/learnable.py, patch_embedding.py; 0.0.1 to
0.0.28.post3. Shared by the dialects of its two epochs. The path words: {trunk} is what stands before `encoders`, {att}
and {ff} the two branches of a block, {att_norm} and {ff_norm} their norms, {final} the trunk's own last norm.
"""

from collections.abc import Mapping

from vitconv.dialects._parts import TABLE
from vitconv.layout.dialect import Dialect
from vitconv.layout.rule import Choice, Entry, Forbid, Option, Rule, linear, norm, rule

SOURCE = "facebookresearch/xformers xformers/factory/block_factory.py and xformers/components"
BLOCK = "{trunk}encoders.{i}."
_POSE = "{trunk}encoders.0.pose_encoding."
_PATCH = "{trunk}encoders.0.patch_emb.1"

_HEAD = (*norm("ln", "norm"), *linear("head", "head", "o d"))
# nn.LayerNorm as torch makes it.
_LN = {"final_norm_eps": 1e-5}


def _example(name: str, embedding: str, pooling: str) -> Option:
    """Build the network of examples/cifar_ViT.py (0.0.12) and microViT.py (0.0.11), which the factory embeds."""
    return Option(
        name,
        _HEAD,
        bind={"trunk": "vit.", "final": "trunk_norm"},
        implies={"pooling": pooling},
        only={"embedding": (embedding,)},
        author=_LN,
        read_only=True,
    )


def _early_example(name: str, tokens: tuple[Rule, ...], pooling: str) -> Option:
    """Build the network of examples/microViT.py of 0.0.4 to 0.0.10, which embeds by itself."""
    return Option(
        name,
        (*tokens, *linear("patch_emb", "embed.patch", "d c p q"), *_HEAD),
        bind={"trunk": "transformer.", "final": "trunk_norm"},
        implies={"pooling": pooling},
        only={"embedding": ("outside",)},
        author=_LN,
        read_only=True,
    )


EXAMPLES = (_example("example", "class+patches", "token"), _example("example-mean", "patches", "avg"))
EARLY_EXAMPLES = (
    _early_example(
        "early-example",
        (
            *rule("clf_token: d", "embed.cls: d"),
            *rule("pos_emb: 1 (1+n) d", "embed.pos_cls: d", "embed.pos: n d"),
        ),
        "token",
    ),
    _early_example("early-example-mean", rule("pos_emb: 1 n d", "embed.pos: n d"), "avg"),
)

# The network of the first public report: its own embeddings and head around the factory's blocks; and the bare trunk.
_WRAPPERS = (
    Option(
        "vit",
        (
            *rule("cls_token: 1 1 d", "embed.cls: d"),
            *rule("pos_embed: 1 (1+n) d", "embed.pos_cls: d", "embed.pos: n d"),
            *linear("patch_embed.proj", "embed.patch", "d c p q"),
            *norm("head.0", "norm"),
            *linear("head.1", "head", "o d", optional=True),
        ),
        bind={"trunk": "backbone.", "final": "trunk_norm"},
        implies={"pooling": "token"},
        only={"embedding": ("outside",)},
    ),
    Option("trunk", bind={"trunk": "", "final": "norm"}),
)

# The factory embeds from 0.0.11 on, a release that normalises K and V too.
EMBEDDING = Choice(
    "embedding",
    (
        Option("outside"),
        Option(
            "class+patches",
            (
                *rule(_POSE + "class_token: d", "embed.cls: d"),
                *rule(_POSE + "pos_emb: 1 (1+n) d", "embed.pos_cls: d", "embed.pos: n d"),
                *linear(_PATCH, "embed.patch", "d c p q", optional=True),
            ),
            implies={"kv_normalised": True},
        ),
        Option(
            "patches",
            (
                *rule(_POSE + "pos_emb: 1 n d", "embed.pos: n d"),
                *linear(_PATCH, "embed.patch", "d c p q", optional=True),
            ),
            implies={"kv_normalised": True},
        ),
        Option("no-position", linear(_PATCH, "embed.patch", "d c p q"), implies={"kv_normalised": True}),
    ),
)

_PRE = {
    "att": "wrap_att.layer.sublayer",
    "att_norm": "wrap_att.layer.norm",
    "ff": "wrap_ff.layer.sublayer",
    "ff_norm": "wrap_ff.layer.norm",
}
_LAST = {"ff": "wrap_ff.sublayer.layer.sublayer", "ff_norm": "wrap_ff.sublayer.layer.norm"}
_POST = {
    "att": "wrap_att.sublayer.layer",
    "att_norm": "wrap_att.norm",
    "ff": "wrap_ff.sublayer.layer",
    "ff_norm": "wrap_ff.norm",
}

# Post-norm and DeepNorm share every key; both normalise what all of q, k and v see.
NORM = Choice(
    "norm",
    (
        Option("pre", bind=_PRE, implies={"norm_placement": "pre"}),
        Option(
            "pre-final",
            norm(BLOCK + "wrap_ff.norm", "{final}", layers="last"),
            bind=_PRE,
            last=_LAST,
            implies={"norm_placement": "pre"},
        ),
        Option("post", bind=_POST, implies={"norm_placement": ("post", "deepnorm"), "kv_normalised": True}),
    ),
)

BRANCHES: tuple[Entry, ...] = (
    *norm(BLOCK + "{att_norm}", "blocks.{i}.norm1"),
    *norm(BLOCK + "{ff_norm}", "blocks.{i}.norm2"),
)


def mlp(up: str, down: str, up_bias: str = "", down_bias: str = "") -> tuple[Rule, ...]:
    """Build the rules of a feed-forward from its names under {ff}; without bias names it has no biases."""
    pairs = [(up, "up.weight", "m d"), (down, "down.weight", "d m")]
    pairs += [(up_bias, "up.bias", "m"), (down_bias, "down.bias", "d")] if up_bias else []
    return tuple(
        r
        for name, part, axes in pairs
        for r in rule(f"{BLOCK}{{ff}}.mlp.{name}: {axes}", f"blocks.{{i}}.mlp.{part}: {axes}")
    )


FORBIDS = (
    Forbid(r"rotary_embeddings\.inv_freq$", "rotary positions (one-dimensional, per head) have no ViT equivalent"),
    Forbid(r"\.moe\.|\.gate\.wg\.", "a mixture of experts has no equivalent"),
    Forbid(r"\.conv_mlp\.", "Conv2DFeedforward (a depthwise convolution between the linears) has no equivalent"),
    Forbid(r"(^|\.)decoders\.\d", "decoder blocks (cross-attention) have no equivalent"),
    Forbid(r"encoders\.blocks\.\d+\.[fg]\.net\.", "reversible blocks compute another function; no equivalent"),
    Forbid(
        r"\.in_proj_container\.[qkv]_proj_weight$",
        "raw projections (0.0.11 with dim_value unlike dim_model) are stored untransposed and beside no usable output",
    ),
    Forbid(r"\.wrap_ff\.norm\.(weight|bias)$", "a final norm in the middle of the stack has no equivalent"),
    # Unknown where the other style is closer.
    Forbid(
        r"\.wrap_att\.((layer\.)?norm\.(weight|bias)|(sublayer\.layer|layer\.sublayer)\.proj\.weight)$",
        "pre-norm blocks that end with a norm inside the stack, or beside post-norm ones, have no equivalent",
    ),
    Forbid(
        r"encoders\.[1-9]\d*\.patch_emb\.",
        "a patch embedding in a later block (hierarchical, or one config for all blocks) has no equivalent",
    ),
    Forbid(
        r"\.pose_encoding\.(position|word)_embeddings\.", "vocabulary embeddings (token ids) have no ViT equivalent"
    ),
    Forbid(
        r"encoders\.[1-9]\d*\.pose_encoding\.",
        "positions that are added again in a later block (0.0.11, configurations with positions of their own) have no "
        "equivalent",
    ),
    Forbid(r"\.embedding_projector\.", "a projector after the position table (its width is not the trunk's)"),
    Forbid(r"\.attention\.mask$", "a causal mask (0.0.1 to 0.0.5 save it): tokens that see only those before them"),
    Forbid(
        r"\.attention\.(?!mask$)|\.(out_proj|value_q|score_network)\.",
        "an attention with weights of its own (lambda, linformer, compositional, visual) has no equivalent",
    ),
    Forbid(
        r"\.in_proj_container\.",
        "an attention without projections to queries, keys and values (fourier_mix, pooling) has no equivalent",
        absent=True,
    ),
    Forbid(
        r"encoders\.\d+\.wrap_(att|ff)(\.sublayer)?(\.layer)?\.norm\.",
        "blocks without their norms (normalization: skip) have no equivalent",
        absent=True,
    ),
)

CANNOT = {
    r"\.ls[12]$": "LayerScale; --edit fold-layer-scale folds it into the linears before it",
    r"^embed\.(reg|pos_reg)$": "register tokens",
    r"^embed\.(dist|pos_dist)$|^head_dist\.": "a distillation token and its head",
    r"^embed\.mask$": "a mask token",
    r"^embed\.norm\.": "a norm before the first block",
    r"^embed\.(pos|pos_cls|cls|patch\..*)$": "these embeddings; it takes a class token with a position row of its own",
    r"\.attn\.[qk]_norm\.": "norms of queries and keys",
    r"\.attn\.norm\.": "a norm before the output projection",
    r"\.mlp\.norm\.": "a norm inside the MLP",
    r"\.mlp\.gate\.": "a gated MLP (SwiGLU)",
    r"\.mlp\.(up|down)\.bias$": "biases in an MLP of this kind: they are in no state dict",
    r"^pool\.norm\.": "a norm after pooling",
    r"^pool\.dense\.": "a pooler",
    r"^norm\.": "a final norm in this trunk",
    r"^trunk_norm\.": "a norm at the end of the trunk",
    r"^head\.": "a classifier on a bare trunk",
}


def factory(
    name: str,
    title: str,
    releases: str,
    entries: tuple[Entry, ...],
    implies: Mapping[str, object] | None = None,
    wrappers: tuple[Option, ...] = (),
) -> Dialect:
    """Build the dialect of one epoch from what is its own; `wrappers` are further networks around the stack."""
    return Dialect(
        name=name,
        title=title,
        source=f"{SOURCE}, {releases}",
        library="xformers",
        entries=(Choice("wrapper", (*_WRAPPERS, *wrappers)), EMBEDDING, *BRANCHES, *entries, NORM),
        implies={"norm_kind": "layernorm", "position": TABLE, **(implies or {})},
        forbids=FORBIDS,
        cannot=CANNOT,
        equal=(("a", "d"),),
    )
