"""What transformers' DINOv2 models have in common, with and without registers, on disk and as version 5 holds them.

Source: huggingface/transformers, src/transformers/models/dinov2/modeling_dinov2.py and
dinov2_with_registers/modeling_dinov2_with_registers.py, 4.57.3 (names on disk) and 5.24.0 (names in memory).
"""

from vitconv.dialects._hf import ZERO_BIASES
from vitconv.dialects._parts import TABLE
from vitconv.layout.dialect import Dialect
from vitconv.layout.rule import Choice, Entry, Forbid, Option, linear, norm, rule

_B = "{p}encoder.layer.{i}."

ON_DISK: tuple[Entry, ...] = (
    *rule(_B + "attention.attention.{query,key,value}.weight: a d", "blocks.{i}.attn.{q,k,v}.weight: a d"),
    Choice(
        "qkv_bias",
        (
            Option(
                "true",
                rule(
                    _B + "attention.attention.{query,key,value}.bias: a",
                    "blocks.{i}.attn.{q,k,v}.bias: a",
                    fill=ZERO_BIASES,
                ),
            ),
            Option("false"),
        ),
    ),
    *linear(_B + "attention.output.dense", "blocks.{i}.attn.out", "d a"),
    Choice(
        "mlp",
        (
            Option(
                "mlp",
                (
                    *linear(_B + "mlp.fc1", "blocks.{i}.mlp.up", "m d"),
                    *linear(_B + "mlp.fc2", "blocks.{i}.mlp.down", "d m"),
                ),
                without=("blocks.{i}.mlp.gate.weight",),
            ),
            Option(
                "swiglu",
                (
                    *rule(_B + "mlp.weights_in.weight: (* m) d", "blocks.{i}.mlp.{gate,up}.weight: m d"),
                    *rule(_B + "mlp.weights_in.bias: (* m)", "blocks.{i}.mlp.{gate,up}.bias: m"),
                    *linear(_B + "mlp.weights_out", "blocks.{i}.mlp.down", "d m"),
                ),
                implies={"activation": "silu"},
            ),
        ),
    ),
)
IN_MEMORY: tuple[Entry, ...] = (
    *rule(_B + "attention.{q_proj,k_proj,v_proj}.weight: a d", "blocks.{i}.attn.{q,k,v}.weight: a d"),
    Choice(
        "qkv_bias",
        (
            Option(
                "true",
                rule(
                    _B + "attention.{q_proj,k_proj,v_proj}.bias: a",
                    "blocks.{i}.attn.{q,k,v}.bias: a",
                    fill=ZERO_BIASES,
                ),
            ),
            Option("false"),
        ),
    ),
    *linear(_B + "attention.o_proj", "blocks.{i}.attn.out", "d a"),
    Choice(
        "mlp",
        (
            Option(
                "mlp",
                (
                    *linear(_B + "mlp.fc1", "blocks.{i}.mlp.up", "m d"),
                    *linear(_B + "mlp.fc2", "blocks.{i}.mlp.down", "d m"),
                ),
                without=("blocks.{i}.mlp.gate.weight",),
            ),
            Option(
                "swiglu",
                (
                    *linear(_B + "mlp.gate_proj", "blocks.{i}.mlp.gate", "m d"),
                    *linear(_B + "mlp.up_proj", "blocks.{i}.mlp.up", "m d"),
                    *linear(_B + "mlp.down_proj", "blocks.{i}.mlp.down", "d m"),
                ),
                implies={"activation": "silu"},
            ),
        ),
    ),
)


def dinov2(name: str, title: str, blocks: tuple[Entry, ...], *, registers: bool) -> Dialect:
    """Build the dialect of one model in one epoch."""
    folder = "dinov2_with_registers" if registers else "dinov2"
    tokens = rule("{p}embeddings.register_tokens: 1 r d", "embed.reg: r d") if registers else ()
    return Dialect(
        name=name,
        title=title,
        source=f"huggingface/transformers models/{folder}/modeling_{folder}.py",
        library="transformers",
        entries=(
            # The bare model, and the name a head or a backbone puts before it; a classifier reads 2 d (see forbids).
            Choice("prefix", (Option("none", bind={"p": ""}), Option("model", bind={"p": f"{folder}."}))),
            *rule("{p}embeddings.cls_token: 1 1 d", "embed.cls: d"),
            *tokens,
            *rule("{p}embeddings.mask_token: 1 d", "embed.mask: d", optional=True),
            *rule("{p}embeddings.position_embeddings: 1 (1+n) d", "embed.pos_cls: d", "embed.pos: n d"),
            *linear("{p}embeddings.patch_embeddings.projection", "embed.patch", "d c p q"),
            *norm(_B + "norm1", "blocks.{i}.norm1"),
            *blocks,
            *rule(_B + "layer_scale1.lambda1: d", "blocks.{i}.ls1: d", fill={"blocks.{i}.ls1": 1.0}),
            *norm(_B + "norm2", "blocks.{i}.norm2"),
            *rule(_B + "layer_scale2.lambda1: d", "blocks.{i}.ls2: d", fill={"blocks.{i}.ls2": 1.0}),
            *norm("{p}layernorm", "norm"),
        ),
        implies={
            "norm_placement": "pre",
            "norm_kind": "layernorm",
            "kv_normalised": True,
            "attention": "softmax",
            "position": TABLE,
        },
        forbids=(
            Forbid(r"^classifier\.", "its classifier reads the class token and the mean of the patches, 2 d wide"),
        ),
        usual={"norm_eps": 1e-6, "final_norm_eps": 1e-6, "activation": "gelu"},
        cannot={
            r"^embed\.(reg|pos_reg)$": "register tokens" if not registers else "position rows of registers",
            r"^embed\.(dist|pos_dist)$|^head_dist\.": "a distillation token and its head",
            r"^embed\.norm\.": "a norm before the first block",
            r"\.attn\.[qk]_norm\.": "norms of queries and keys",
            r"\.attn\.norm\.": "a norm before the output projection",
            r"\.mlp\.norm\.": "a norm inside the MLP",
            r"^pool\.": "a pooler, or a norm after pooling",
            r"^trunk_norm\.": "a norm at the end of the trunk and a second final norm after it",
            r"^head\.": "a classifier of one token: its own is 2 d wide",
        },
        equal=(("a", "d"),),
    )
