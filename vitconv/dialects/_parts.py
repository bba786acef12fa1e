"""Rules that many layouts have in common, with the key of each as the codebase spells it.

Source: none of its own; each dialect names the source of the keys it passes in.
"""

from typing import Any

from vitconv.layout.rule import Choice, Const, Entry, Forbid, Option, Rule, linear, rule

BLOCK = "blocks.{i}."
ZERO_QKV: dict[str, float | str] = {f"blocks.{{i}}.attn.{x}.bias": 0.0 for x in "qkv"}
# Positions that are added to the tokens as a table, or none: what a network without rotary positions computes.
TABLE = ("learned", "sincos", "none")
# Rotary positions whose places are numbered by rows and then columns, from 0.
ROWS_FIRST: dict[str, Any] = {"rope_order": "rows", "rope_offset": 0.0}
# Of DeiT's authors; the keys around it are those of several layouts.
CONVOLUTIONS = Forbid(
    r"^patch_embed\.proj\.\d",
    "a stem of convolutions with batch norms between them (DeiT III's hMLP_stem, MoCo-v3's ConvStem), which no other"
    " layout has",
)
# What every plain network computes.
PLAIN: dict[str, Any] = {
    "norm_placement": "pre",
    "norm_kind": "layernorm",
    "kv_normalised": True,
    "attention": "softmax",
    "position": TABLE,
}

# Reasons that most layouts give, by what they speak of.
WHY = {
    "ls": (r"^blocks.*\.ls[12]$", "LayerScale; --edit fold-layer-scale folds it into the linears before it"),
    "embed.norm": (r"^embed\.norm\.", "a norm before the first block"),
    "pool.dense": (r"^pool\.dense\.", "a pooler"),
    "pool.norm": (r"^pool\.norm\.", "a norm after pooling: it norms before"),
    "dist": (r"^embed\.(dist|pos_dist)$|^head_dist\.", "a distillation token and its head"),
    "map": (r"^pool\.(probe|q|k|v|out|mlp_norm|up|down)(\.|$)", "an attention-pooling head"),
    "decoder": (r"^decoder\.", "a decoder; --drop 'decoder.*' keeps the encoder alone"),
}


def why(*names: str) -> dict[str, str]:
    """Return the usual reasons by name, as a dialect's `cannot` has them."""
    return dict(WHY[name] for name in names)


def fused(weight: str, bias: str, *, optional: bool = True) -> tuple[Rule, ...]:
    """Build q, k and v stacked in this order; biases that are lacking are zeros."""
    return rule(f"{weight}: (* a) d", "blocks.{i}.attn.{q,k,v}.weight: a d") + rule(
        f"{bias}: (* a)", "blocks.{i}.attn.{q,k,v}.bias: a", optional=optional, fill=ZERO_QKV
    )


def ones(key: str, part: str) -> tuple[Rule, ...]:
    """Build a LayerScale that is one where the network has none."""
    return rule(f"{key}: d", f"{part}: d", fill={part: 1.0})


def scaled(one: str, two: str) -> Choice:
    """Build the LayerScale of both branches, or none, as the author's code leaves it out when it has no value."""
    return Choice(
        "layer_scale",
        (
            Option("false", without=("blocks.{i}.ls1", "blocks.{i}.ls2")),
            Option("true", (*ones(one, "blocks.{i}.ls1"), *ones(two, "blocks.{i}.ls2"))),
        ),
    )


def buffers(*consts: Const, only: dict[str, tuple[str, ...]] | None = None) -> Choice:
    """Build buffers that some releases keep in the file, and others make anew and do not open a file with."""
    return Choice("buffers", (Option("left-out"), Option("held", consts, only=only or {})))


def zeroed(whole: str, part: str, axes: str) -> tuple[Rule, ...]:
    """Build a linear layer whose bias is written as zeros where the network has none."""
    first = axes.split()[0]
    return rule(f"{whole}.weight: {axes}", f"{part}.weight: {axes}") + rule(
        f"{whole}.bias: {first}", f"{part}.bias: {first}", fill={f"{part}.bias": 0.0}
    )


def pool_head(probe: str, attention: tuple[Entry, ...], norm_key: str, mlp: tuple[str, str]) -> tuple[Entry, ...]:
    """Build an attention-pooling head: all of it, or nothing.

    Args:
        probe: key and axes of the query, as in `attn_pool.latent: 1 1 d`.
        attention: the rules of its attention.
        norm_key: path of the norm before its MLP.
        mlp: paths of the MLP's two linears.
    """
    up, down = mlp
    return (
        *rule(probe, "pool.probe: d"),
        *attention,
        *(r for k in ("weight", "bias") for r in rule(f"{norm_key}.{k}: d", f"pool.mlp_norm.{k}: d")),
        *linear(up, "pool.up", "w d"),
        *linear(down, "pool.down", "d w"),
    )


def together(rules: tuple[Entry, ...], group: str) -> tuple[Entry, ...]:
    """Make rules optional, all of them or none."""
    return tuple(
        Rule(r.key, r.axes, r.parts, True, r.layers, r.fill, group) if isinstance(r, Rule) else r for r in rules
    )
