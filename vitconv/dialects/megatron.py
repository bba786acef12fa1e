"""Megatron-LM's vision transformer: q, k and v of each head stand together.

Source: NVIDIA/Megatron-LM, megatron/core/models/vision/clip_vit_model.py and core/transformer/attention.py, core 0.16.1
(run on CPU with its local layers), and examples/multimodal/model_converter/clip_converter.py, d98e8a6. Norms are
modules of their own, or sit inside TransformerEngine's fused linears. The head count is nowhere in the file: say it
with --axis h=N. Shards of tensor parallelism are to be joined first.
"""

from vitconv.dialects._parts import PLAIN, why
from vitconv.layout.dialect import Dialect
from vitconv.layout.rule import Choice, Entry, Forbid, Option, linear, norm, rule

_B = "decoder.layers.{i}."
_TE = ("self_attention.linear_qkv.layer_norm_", "mlp.linear_fc1.layer_norm_")


def _inside() -> tuple[Entry, ...]:
    return tuple(
        r
        for key, part in zip(_TE, ("norm1", "norm2"), strict=True)
        for kind in ("weight", "bias")
        for r in rule(f"{_B}{key}{kind}: d", f"blocks.{{i}}.{part}.{kind}: d")
    )


DIALECT = Dialect(
    name="megatron",
    title="Megatron-LM vision transformer",
    source="NVIDIA/Megatron-LM megatron/core/models/vision/clip_vit_model.py, core 0.16.1",
    library="megatron",
    implies=PLAIN,
    author={"norm_eps": 1e-5, "final_norm_eps": 1e-5, "embed_norm_eps": 1e-5},
    entries=(
        Choice(
            "tokens",
            (
                Option(
                    "class",
                    (
                        *rule("class_token: 1 1 d", "embed.cls: d"),
                        *rule("position_embeddings.weight: (1+n) d", "embed.pos_cls: d", "embed.pos: n d"),
                    ),
                    without=("embed.reg",),
                ),
                # A class token of several rows, as RADIO and multiples of eight have it: the first is the class token.
                Option(
                    "several",
                    (
                        *rule("class_token: 1 (1+r) d", "embed.cls: d", "embed.reg: r d"),
                        *rule(
                            "position_embeddings.weight: (1+r+n) d",
                            "embed.pos_cls: d",
                            "embed.pos_reg: r d",
                            "embed.pos: n d",
                        ),
                    ),
                ),
                Option(
                    "none",
                    rule("position_embeddings.weight: n d", "embed.pos: n d"),
                    without=("embed.cls", "embed.reg"),
                ),
            ),
        ),
        *linear("conv1", "embed.patch", "d c p q", bias=False),
        *norm("ln_pre", "embed.norm", optional=True),
        Choice(
            "norms",
            (
                Option("inside", _inside()),
                Option(
                    "apart",
                    (
                        *norm(_B + "input_layernorm", "blocks.{i}.norm1"),
                        *norm(_B + "pre_mlp_layernorm", "blocks.{i}.norm2"),
                    ),
                ),
            ),
        ),
        *rule(_B + "self_attention.linear_qkv.weight: (h * e) d", "blocks.{i}.attn.{q,k,v}.weight: (h e) d"),
        *rule(
            _B + "self_attention.linear_qkv.bias: (h * e)",
            "blocks.{i}.attn.{q,k,v}.bias: (h e)",
            optional=True,
            fill={f"blocks.{{i}}.attn.{x}.bias": 0.0 for x in "qkv"},
        ),
        *rule(_B + "self_attention.linear_proj.weight: d a", "blocks.{i}.attn.out.weight: d a"),
        *rule(_B + "self_attention.linear_proj.bias: d", "blocks.{i}.attn.out.bias: d", optional=True),
        *linear(_B + "mlp.linear_fc1", "blocks.{i}.mlp.up", "m d", bias=False),
        *linear(_B + "mlp.linear_fc2", "blocks.{i}.mlp.down", "d m", bias=False),
        *norm("ln_post", "norm", optional=True),
    ),
    forbids=(Forbid(r"^vision_projection|^language_model", "a text decoder or its projector beside the vision tower"),),
    cannot=why("ls", "pool.norm", "pool.dense", "dist", "map")
    | {
        r"^embed\.mask$": "a mask token",
        r"\.mlp\.gate\.": "a gated MLP (SwiGLU)",
        r"\.attn\.[qk]_norm\.": "norms of queries and keys",
        r"^head\.": "a classifier",
    },
)
