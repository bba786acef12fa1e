"""The configuration of the reference ViT: the sizes that tensors state, and the facts that they do not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isqrt

from vitconv.errors import Refused
from vitconv.layout.semantics import FOCUSED, Semantics
from vitconv.vit.shapes import Shapes, compare, expected_shapes, read_sizes


@dataclass(frozen=True)
class ViTConfig:
    """Everything that decides the reference ViT.

    With `channels` 0 there is no patch projection: the network takes tokens [b t d] (a bare trunk).

    Sizes are in elements: `width` d, `attention_width` a, `mlp_width` m, `patch` (p, q) in pixels, `positions` n (0: no
    table), `rows` and `columns` those of a table that is a sum of two, `registers` r, `classes` o (0: no head),
    `pool_dense` the width after the pooler (0: none). A flag says that the tensors of that name exist. `relative`
    counts the rows of the table of relative positions, `periods` the stored periods of rotary positions; with `mixed`
    every block has frequencies of its own, with `twin` two branches of each kind side by side. `pool_map` and
    `pool_mlp` are the widths of an attention-pooling head, `queries`, `query_width` and `query_out` those of CoCa's
    pooler. `inert` are tensors that training alone uses, such as a decoder.

    `facts` holds what no tensor says; use `config_from_shapes` to have it checked
    for completeness.
    """

    width: int
    depth: int
    attention_width: int
    mlp_width: int
    patch: tuple[int, int]
    channels: int
    positions: int
    facts: Semantics
    rows: int = 0
    columns: int = 0
    classes: int = 0
    classes_dist: int = 0
    registers: int = 0
    cls: bool = True
    dist: bool = False
    mask: bool = False
    pos_cls: bool = True
    pos_dist: bool = False
    pos_reg: bool = False
    patch_bias: bool = True
    q_bias: bool = True
    k_bias: bool = True
    v_bias: bool = True
    out_bias: bool = True
    mlp_bias: bool = True
    block_norms: bool = True
    norm_bias: bool = True
    qk_norm: bool = False
    qk_norm_bias: bool = True
    attn_norm: bool = False
    layer_scale: bool = False
    gated: bool = False
    mlp_norm: bool = False
    embed_norm: bool = False
    trunk_norm: bool = False
    trunk_dense: bool = False
    norm: bool = True
    pool_norm: bool = False
    pool_dense: int = 0
    head_bias: bool = True
    k_masked: bool = False
    relative: int = 0
    relative_shared: bool = False
    periods: int = 0
    mixed: bool = False
    twin: bool = False
    norm_cls: bool = False
    pixel_norm: bool = False
    patch_norm: bool = False
    pool_map: int = 0
    pool_mlp: int = 0
    queries: int = 0
    query_width: int = 0
    query_out: int = 0
    inert: Mapping[str, Mapping[str, tuple[int, ...]]] = field(default_factory=dict)

    @property
    def heads(self) -> int:
        """Return the number of attention heads h."""
        return _known(self.facts.heads, "heads")

    @property
    def head_width(self) -> int:
        """Return e = a / h."""
        return self.attention_width // self.heads

    @property
    def prefix(self) -> int:
        """Return the number of tokens ahead of the patches: class, distillation, registers."""
        return int(self.cls) + int(self.dist) + self.registers

    @property
    def grid(self) -> tuple[int, int]:
        """Return the patch grid (rows, columns): the fact, else the image size over the patch, else a square.

        Raises:
            Refused: neither is known and the number of positions is no square.
        """
        facts = self.facts
        if self.rows:
            return self.rows, self.columns
        if facts.grid is not None:
            return facts.grid
        if facts.image_size is not None:
            return facts.image_size[0] // self.patch[0], facts.image_size[1] // self.patch[1]
        side = isqrt(self.positions)
        if self.relative and not side:
            # A square grid of side s has a table of (2 s - 1)^2 rows.
            side = (isqrt(self.relative) + 1) // 2
            if (2 * side - 1) ** 2 == self.relative:
                return side, side
        if side == 0 or side * side != self.positions:
            raise Refused(
                f"the patch grid is unknown: {self.positions} positions are no square; say --set grid=ROWSxCOLUMNS"
            )
        return side, side

    @property
    def tabled(self) -> bool:
        """Say whether there is a table of absolute positions."""
        return bool(self.positions or self.rows)

    @property
    def sized(self) -> bool:
        """Say whether a table or a fact ties the network to one grid; without either it takes images of any size."""
        facts = self.facts
        return bool(self.tabled or self.relative or facts.grid or facts.image_size)

    @property
    def image_size(self) -> tuple[int, int]:
        """Return the image size (height, width) in pixels that fills the grid."""
        return self.grid[0] * self.patch[0], self.grid[1] * self.patch[1]

    def shapes(self) -> Shapes:
        """Return {canonical name: shape} of every tensor of this network."""
        return expected_shapes(self)


# Why each fact is needed, in the words of the message.
_NEEDED = {
    "heads": "how the attention width splits into heads",
    "norm_placement": "where the norms stand in a block",
    "residual_alpha": "the factor of the residual in a deepnorm block",
    "norm_kind": "which norm: weights alone do not tell LayerNorm without bias from RMSNorm",
    "norm_eps": "the eps of the norms in the blocks",
    "final_norm_eps": "the eps of the final norm",
    "embed_norm_eps": "the eps of the norm before the blocks",
    "qk_norm_eps": "the eps of the query and key norms",
    "activation": "the activation of the MLP",
    "attention": "the attention mechanism",
    "kv_normalised": "whether keys and values read the normalised input (xformers <= 0.0.9: no)",
    "pooling": "what is pooled ahead of the head",
    "pool_heads": "how the width of the attentional pooler splits into heads",
    "position": "how positions enter, which no table of them says",
    "sincos_rule": "which sines and cosines the positions are, since there is no table of them",
    "rope_layout": "which components of a head a rotary position turns together",
    "rope_order": "the side whose places turn the first half of a head",
    "rope_reference": "the grid that the places of interleaved rotary positions are numbered in",
    "focusing_factor": "the power of focused linear attention",
}
_EXAMPLE = {
    "heads": "12", "norm_placement": "pre", "residual_alpha": "2.2134", "norm_kind": "layernorm",
    "norm_eps": "1e-6", "final_norm_eps": "1e-6", "embed_norm_eps": "1e-5", "qk_norm_eps": "1e-6",
    "activation": "gelu", "attention": "softmax", "kv_normalised": "true", "pooling": "token", "pool_heads": "8",
    "position": "none", "sincos_rule": "big-vision", "focusing_factor": "3",
    "rope_layout": "half", "rope_order": "rows", "rope_reference": "16x16",
}  # fmt: skip


def config_from_shapes(shapes: Mapping[str, tuple[int, ...]], facts: Semantics) -> ViTConfig:
    """Build the configuration from canonical names and shapes, and the facts.

    `shapes`: {canonical name: shape}. What tensors prove is filled in (heads from the width of a query norm,
    LayerNorm from the presence of its bias); every other fact the network needs must be known.

    Raises:
        Refused: facts are missing (all are named, each with the `--set NAME=` that completes it), a fact
            asks for something the reference ViT does not compute, or the tensors are not those of one plain
            ViT.
    """
    sizes = read_sizes(shapes)
    facts = _proven(shapes, sizes, facts)
    config = ViTConfig(facts=facts, **sizes)
    differences = compare(config.shapes(), shapes)
    if differences:
        raise Refused("the tensors are not those of one plain ViT:\n  " + "\n  ".join(differences))
    _check_complete(config)
    _check_computable(config)
    return config


def _proven(shapes: Mapping[str, tuple[int, ...]], sizes: Mapping[str, object], facts: Semantics) -> Semantics:
    more: dict[str, object] = {}
    if "blocks.0.attn.q_norm.weight" in shapes:
        more["heads"] = shapes["blocks.0.attn.q.weight"][0] // shapes["blocks.0.attn.q_norm.weight"][0]
    if sizes["norm_bias"]:
        more["norm_kind"] = "layernorm"
    if not sizes["block_norms"]:
        more |= {"norm_placement": "none", "kv_normalised": True}
    table = shapes.get("rel_pos", shapes.get("blocks.0.attn.rel_pos"))
    if table is not None:
        more["heads"] = table[1]
    if "rope.periods" in shapes:
        more |= {"heads": shapes["blocks.0.attn.q.weight"][0] // (4 * shapes["rope.periods"][0]), "position": "rope"}
    own = shapes.get("blocks.0.attn.rope")
    if own is not None:
        more |= {"heads": own[1], "position": "rope", "rope_layout": "interleaved"}
    if "pool.probe" in shapes and not (sizes["cls"] or sizes["registers"]):
        more["pooling"] = "map"
    if facts.norm_placement in ("post", "deepnorm", "res-post"):
        # Without a norm on the way into attention the question does not arise.
        more["kv_normalised"] = True
    return facts.filled(more)


def missing_facts(config: ViTConfig) -> list[str]:
    """Return the names of the facts that this network needs and that are unknown, in a fixed order."""
    facts = config.facts
    final = config.norm or config.pool_norm
    needed = {
        "norm_eps": config.block_norms,
        "norm_kind": config.block_norms or final or config.embed_norm,
        "residual_alpha": facts.norm_placement == "deepnorm",
        "final_norm_eps": final or config.queries > 0,
        "pool_heads": config.queries > 0,
        "embed_norm_eps": config.embed_norm,
        "qk_norm_eps": config.qk_norm,
        # A layout that turns its pairs in one way may also turn none: then a table does not say that it is all.
        "position": (not (config.tabled or config.relative) and config.channels > 0) or facts.rope_layout is not None,
        "sincos_rule": facts.position == "sincos" and not config.tabled and config.channels > 0,
        "rope_layout": facts.position == "rope",
        # Networks with a bias of keys number either side first, and need no reference.
        "rope_order": facts.position == "rope" and facts.rope_layout == "interleaved" and config.k_bias,
        "rope_reference": facts.position == "rope" and facts.rope_layout == "interleaved" and not config.k_bias,
        "focusing_factor": facts.attention in FOCUSED,
    }
    return [name for name in _NEEDED if needed.get(name, True) and getattr(facts, name) is None]


def _check_complete(config: ViTConfig) -> None:
    missing = missing_facts(config)
    if missing:
        lines = [f"  {name}: {_NEEDED[name]}; say --set {name}={_EXAMPLE[name]} or what it is" for name in missing]
        raise Refused("the weights do not say, and the function needs:\n" + "\n".join(lines))


def _check_computable(config: ViTConfig) -> None:
    facts, wrong = config.facts, []
    if config.attention_width % config.heads:
        wrong.append(f"heads={config.heads} does not divide the attention width {config.attention_width}")
    if config.qk_norm and config.heads * config.head_width != config.attention_width:
        wrong.append(f"heads={config.heads} does not fit the query norm")
    if facts.attention not in ("softmax", "causal", *FOCUSED) or facts.attention == "focused-linear":
        wrong.append(f"attention={facts.attention}: the reference computes softmax, causal and the named focused ones")
    if facts.attention in FOCUSED and (config.qk_norm or config.attn_norm):
        wrong.append(f"attention={facts.attention} has no norms of queries, keys or heads")
    if facts.position == "learned" and not config.tabled and config.channels:
        wrong.append("position=learned, but there is no table of positions")
    if facts.position == "relative" and not config.relative:
        wrong.append("position=relative, but there is no table of relative positions")
    if config.relative and not (config.cls and config.prefix == 1):
        wrong.append("a table of relative positions is for one class token and the patches")
    if facts.position == "rope" and config.head_width % 4:
        wrong.append(f"rotary positions turn quarters of a head, and heads are {config.head_width} wide")
    wrong += _pooled_otherwise(config)
    if facts.norm_placement != "deepnorm" and facts.residual_alpha not in (None, 1.0):
        wrong.append(f"residual_alpha={facts.residual_alpha} belongs to deepnorm, not to {facts.norm_placement}")
    if (facts.norm_placement == "none") == config.block_norms:
        there = "there are norms" if config.block_norms else "there is no norm"
        wrong.append(f"norm_placement={facts.norm_placement}, but {there} in the blocks")
    if config.twin and (facts.norm_placement != "pre" or facts.kv_normalised is False):
        wrong.append(f"parallel branches belong to pre-norm, not to {facts.norm_placement}")
    if facts.norm_placement != "pre" and facts.kv_normalised is False:
        wrong.append(f"kv_normalised=false belongs to pre-norm, not to {facts.norm_placement}")
    if wrong:
        raise Refused("the reference ViT cannot compute this:\n  " + "\n  ".join(wrong))


def _pooled_otherwise(config: ViTConfig) -> list[str]:
    facts, wrong = config.facts, []
    if (facts.pooling in ("map", "map-prefix")) != (config.pool_map > 0):
        wrong.append(
            f"pooling={facts.pooling}, and there is {'an' if config.pool_map else 'no'} attention-pooling head"
        )
    if config.queries and config.query_width % (facts.pool_heads or 1):
        wrong.append(f"pool_heads={facts.pool_heads} does not divide the pooler's width {config.query_width}")
    if facts.pooling == "token" and not config.cls:
        wrong.append("pooling=token, but there is no class token")
    return wrong


def _known(value: int | None, name: str) -> int:
    if value is None:
        raise Refused(f"{name} is unknown: {_NEEDED[name]}; say --set {name}={_EXAMPLE[name]} or what it is")
    return value
