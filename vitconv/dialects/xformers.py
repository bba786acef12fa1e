"""xformers' factory with apart q, k and v projections (0.0.12 to 0.0.28.post3).

Source: facebookresearch/xformers, xformers/components/in_proj_container.py and multi_head_dispatch.py, 0.0.12
(2022-06-02) to 0.0.28.post3; the factory was removed after it. The four biases (q, k, v, output) are separate flags.
Without `use_separate_proj_weight` the three weights are one parameter: torch.save writes it three times, safetensors'
save_model once, as `k_proj.weight`.
"""

from vitconv.dialects._xformers import BLOCK, EXAMPLES, factory, mlp
from vitconv.layout.rule import Choice, Option, rule, tie

_QKV = BLOCK + "{att}.in_proj_container."

DIALECT = factory(
    "xformers",
    "xformers factory, q, k and v apart",
    "0.0.12 to 0.0.28.post3",
    implies={"kv_normalised": True},
    wrappers=EXAMPLES,
    entries=(
        Choice(
            "projection",
            (
                Option(
                    "separate",
                    rule(_QKV + "{q,k,v}_proj.weight: a d", "blocks.{i}.attn.{q,k,v}.weight: a d"),
                ),
                Option(
                    "shared",
                    (
                        *rule(_QKV + "k_proj.weight: a d", "blocks.{i}.attn.k.weight: a d"),
                        *tie(("blocks.{i}.attn.q.weight", "blocks.{i}.attn.v.weight"), "blocks.{i}.attn.k.weight"),
                    ),
                ),
            ),
        ),
        *rule(BLOCK + "{att}.proj.weight: d a", "blocks.{i}.attn.out.weight: d a"),
        *rule(_QKV + "{q,k,v}_proj.bias: a", "blocks.{i}.attn.{q,k,v}.bias: a", optional=True),
        *rule(BLOCK + "{att}.proj.bias: d", "blocks.{i}.attn.out.bias: d", optional=True),
        Choice(
            "mlp",
            (
                Option("MLP", mlp("0.weight", "3.weight", "0.bias", "3.bias")),
                Option("MLP-no-bias", mlp("0.weight", "3.weight")),
                # 0.0.12 to 0.0.26.post1: the bias of the fused dropout is a plain tensor and is never saved.
                Option("FusedMLP", mlp("0.weight", "2.weight")),
                # 0.0.12 to 0.0.21, opt-in: the fused layer that follows each linear holds its bias.
                Option("MLP-nvfuser", mlp("0.weight", "2.weight", "1.bias", "3.bias")),
            ),
        ),
    ),
)
