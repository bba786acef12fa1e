"""A stack of TransformerEngine's TransformerLayer: norms inside the linears, q, k, v fused per head, or apart.

Source: NVIDIA/TransformerEngine, transformer_engine/pytorch/transformer.py and attention (read, not run). Fused weights
are interleaved per head by default (`qkv_weight_interleaved`) and stacked otherwise; no key tells, so say which.
"""

from vitconv.dialects._parts import PLAIN, TABLE
from vitconv.layout.dialect import Dialect
from vitconv.layout.rule import Choice, Option, rule

_B = "layers.{i}."
_QKV = _B + "self_attention.layernorm_qkv."
_MLP = _B + "layernorm_mlp."
_ZEROS: dict[str, float | str] = {f"blocks.{{i}}.attn.{x}.bias": 0.0 for x in "qkv"}

DIALECT = Dialect(
    name="transformer-engine",
    title="TransformerEngine layers",
    source="NVIDIA/TransformerEngine transformer_engine/pytorch/transformer.py",
    library="transformer_engine",
    implies=PLAIN | {"position": (*TABLE, "rope")},
    author={"norm_eps": 1e-5},
    entries=(
        *(r for k in ("weight", "bias") for r in rule(f"{_QKV}layer_norm_{k}: d", f"blocks.{{i}}.norm1.{k}: d")),
        Choice(
            "qkv",
            (
                # The one that its keys tell comes first.
                Option(
                    "apart",
                    (
                        *rule(_QKV + "{query,key,value}_weight: a d", "blocks.{i}.attn.{q,k,v}.weight: a d"),
                        *rule(
                            _QKV + "{query,key,value}_bias: a",
                            "blocks.{i}.attn.{q,k,v}.bias: a",
                            optional=True,
                            group="qkv_bias",
                            fill=_ZEROS,
                        ),
                    ),
                ),
                Option(
                    "per-head",
                    (
                        *rule(_QKV + "weight: (h * e) d", "blocks.{i}.attn.{q,k,v}.weight: (h e) d"),
                        *rule(
                            _QKV + "bias: (h * e)", "blocks.{i}.attn.{q,k,v}.bias: (h e)", optional=True, fill=_ZEROS
                        ),
                    ),
                ),
                Option(
                    "stacked",
                    (
                        *rule(_QKV + "weight: (* a) d", "blocks.{i}.attn.{q,k,v}.weight: a d"),
                        *rule(_QKV + "bias: (* a)", "blocks.{i}.attn.{q,k,v}.bias: a", optional=True, fill=_ZEROS),
                    ),
                ),
            ),
        ),
        *rule(_B + "self_attention.proj.weight: d a", "blocks.{i}.attn.out.weight: d a"),
        *rule(_B + "self_attention.proj.bias: d", "blocks.{i}.attn.out.bias: d", optional=True),
        *(r for k in ("weight", "bias") for r in rule(f"{_MLP}layer_norm_{k}: d", f"blocks.{{i}}.norm2.{k}: d")),
        *rule(_MLP + "fc1_weight: m d", "blocks.{i}.mlp.up.weight: m d"),
        *rule(_MLP + "fc1_bias: m", "blocks.{i}.mlp.up.bias: m", optional=True),
        *rule(_MLP + "fc2_weight: d m", "blocks.{i}.mlp.down.weight: d m"),
        *rule(_MLP + "fc2_bias: d", "blocks.{i}.mlp.down.bias: d", optional=True),
    ),
    cannot={
        r"^embed\.": "anything before the blocks: it is a trunk, its input are tokens",
        r"^(head|head_dist|pool|norm)\.": "anything after the trunk",
    },
)
