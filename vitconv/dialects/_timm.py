"""What timm's VisionTransformer and NaFlexVit have in common: their blocks, norms, pooling heads and classifiers.

Source: huggingface/pytorch-image-models, timm/models/vision_transformer.py and naflexvit.py, 1.0.31.
"""

from vitconv.dialects._parts import BLOCK, pool_head, together, zeroed
from vitconv.layout.rule import Choice, Doubt, Entry, Forbid, Option, linear, norm, rule

# {key: (canonical name, axis)} of every norm; the two of a block are always there.
_BLOCK_NORMS = {BLOCK + "norm1": ("blocks.{i}.norm1", "d"), BLOCK + "norm2": ("blocks.{i}.norm2", "d")}
_OTHER_NORMS = {
    "norm_pre": ("embed.norm", "d"),
    BLOCK + "attn.q_norm": ("blocks.{i}.attn.q_norm", "e"),
    BLOCK + "attn.k_norm": ("blocks.{i}.attn.k_norm", "e"),
    BLOCK + "attn.norm": ("blocks.{i}.attn.norm", "a"),
    BLOCK + "mlp.norm": ("blocks.{i}.mlp.norm", "m"),
    "norm": ("norm", "d"),
    "fc_norm": ("pool.norm", "d"),
}

NO_PLACE = {
    r"^trunk_norm\.": "a norm at the end of the trunk and a second final norm after it",
    r"^embed\.mask$": "a mask token",
    r"^embed\.patch\.bias$": "a bias of the patch projection beside a norm before the blocks",
    r"^pool\.dense\.": "a pooler",
}
# After a norm before the blocks, and without CLIP's projection, the keys are also those of the Perception Encoder.
ENCODER = Doubt({"position": ("rope",)}, needs=("embed.norm.weight",), without=("head.weight",))
# Kinds of attention and of blocks that no other layout has.
OWN_KINDS = (
    Forbid(r"^attn_pool\.(q_norm|k_norm|pos_embed)", "norms and positions of its own in an attention-pooling head"),
    Forbid(r"\.in_proj\.|\.in_norm\.", "parallel blocks (ParallelScalingBlock) have no place in other layouts"),
    Forbid(r"\.(attns|ffns)\.\d", "parallel branches (ParallelThingsBlock) other than timm-parallel and DeiT have"),
    Forbid(r"\.attn\.gate\.", "gated attention has no place in other layouts"),
    Forbid(r"\.lambda_[qk]", "differential attention has no place in other layouts"),
)


def norm_layer() -> Choice:
    """Build all norms of one kind: LayerNorm with a bias each, or RmsNorm without."""
    return Choice(
        "norm_layer",
        (
            Option("LayerNorm", _norms(bias=True), implies={"norm_kind": "layernorm"}),
            Option("RmsNorm", _norms(bias=False), implies={"norm_kind": "rmsnorm"}),
        ),
    )


def _norms(*, bias: bool) -> tuple[Entry, ...]:
    out: list[Entry] = []
    for optional, norms in ((False, _BLOCK_NORMS), (True, _OTHER_NORMS)):
        for key, (part, axis) in norms.items():
            both = norm(key, part, axis, optional=optional)
            out += both if bias else rule(f"{key}.weight: {axis}", f"{part}.weight: {axis}", optional=optional)
    return tuple(out)


def pre_norm(key: str) -> Choice:
    """Build the bias `key` of the patch projection, which is lacking exactly when a norm follows the embeddings."""
    return Choice(
        "pre_norm",
        (
            Option(
                "false",
                rule(f"{key}: d", "embed.patch.bias: d", fill={"embed.patch.bias": 0.0}),
                without=("embed.norm.weight",),
            ),
            Option("true", needs=("embed.norm.weight",)),
        ),
    )


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


def branches() -> tuple[Entry, ...]:
    """Build what follows the projections of q, k and v in a block: the output projection, LayerScale, the MLP."""
    return (
        *linear(BLOCK + "attn.proj", "blocks.{i}.attn.out", "d a", bias=None),
        *_biases({BLOCK + "attn.proj.bias: d": ("blocks.{i}.attn.out.bias: d",)}),
        *rule(BLOCK + "ls1.gamma: d", "blocks.{i}.ls1: d", optional=True, group="layer_scale"),
        Choice(
            "mlp",
            (
                Option(
                    "Mlp",
                    (
                        *linear(BLOCK + "mlp.fc1", "blocks.{i}.mlp.up", "m d", bias=None),
                        *_biases({BLOCK + "mlp.fc1.bias: m": ("blocks.{i}.mlp.up.bias: m",)}),
                    ),
                    without=("blocks.{i}.mlp.gate.weight",),
                ),
                Option(
                    "SwiGLUPacked",
                    (
                        *rule(BLOCK + "mlp.fc1.weight: (* m) d", "blocks.{i}.mlp.{gate,up}.weight: m d"),
                        *_biases({BLOCK + "mlp.fc1.bias: (* m)": ("blocks.{i}.mlp.{gate,up}.bias: m",)}),
                    ),
                ),
                Option(
                    "SwiGLU",
                    (
                        *linear(BLOCK + "mlp.fc1_g", "blocks.{i}.mlp.gate", "m d", bias=None),
                        *linear(BLOCK + "mlp.fc1_x", "blocks.{i}.mlp.up", "m d", bias=None),
                        *_biases(
                            {
                                BLOCK + "mlp.fc1_g.bias: m": ("blocks.{i}.mlp.gate.bias: m",),
                                BLOCK + "mlp.fc1_x.bias: m": ("blocks.{i}.mlp.up.bias: m",),
                            }
                        ),
                    ),
                ),
            ),
        ),
        *linear(BLOCK + "mlp.fc2", "blocks.{i}.mlp.down", "d m", bias=None),
        *_biases({BLOCK + "mlp.fc2.bias: d": ("blocks.{i}.mlp.down.bias: d",)}),
        *rule(BLOCK + "ls2.gamma: d", "blocks.{i}.ls2: d", optional=True, group="layer_scale"),
    )


def map_pool() -> tuple[Entry, ...]:
    """Build an attention-pooling head: all of it, or nothing."""
    return together(
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
    )


def head() -> tuple[Entry, ...]:
    """Build the classifier; CLIP's projection is one without a bias."""
    return together(zeroed("head", "head", "o d"), "head")
