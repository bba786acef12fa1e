"""xformers' factory with one fused q, k, v projection and every branch under two names (0.0.1 to 0.0.11).

Source: facebookresearch/xformers, xformers/components/in_proj_container.py, multi_head_dispatch.py and
xformers/factory/block_factory.py, initial commit to 0.0.11. `encoders.{i}.mha` and `.feedforward` are the modules that
`wrap_att` and `wrap_ff` wrap: a state dict holds both names, safetensors' save_model keeps the first in the alphabet.
Up to 0.0.9 the pre-norm wrapper normalised the input of q only; no key says so, but FusedMLP's layouts of 0.0.4 to
0.0.9 do.
"""

from vitconv.dialects._xformers import BLOCK, EARLY_EXAMPLES, EXAMPLES, factory, mlp
from vitconv.layout.rule import Alias, Choice, Option, Rule, alias, rule


def _twice(module: str, branch: str, rules: tuple[Rule, ...]) -> tuple[Rule | Alias, ...]:
    """Add the second name, under `module`, of every tensor of a branch."""
    return rules + tuple(a for r in rules for a in alias(r.key.replace(branch, module), r.key))


def _att(rules: tuple[Rule, ...]) -> tuple[Rule | Alias, ...]:
    return _twice("mha", "{att}", rules)


def _ff(rules: tuple[Rule, ...]) -> tuple[Rule | Alias, ...]:
    return _twice("feedforward", "{ff}", rules)


_QKV = BLOCK + "{att}.in_proj_container.in_proj_"
_UNNORMALISED = {"kv_normalised": False}

DIALECT = factory(
    "xformers-fused",
    "xformers factory, q, k and v fused",
    "0.0.1 to 0.0.11",
    wrappers=(*EXAMPLES, *EARLY_EXAMPLES),
    entries=(
        *_att(rule(_QKV + "weight: (* a) d", "blocks.{i}.attn.{q,k,v}.weight: a d")),
        *_att(rule(BLOCK + "{att}.proj.weight: d a", "blocks.{i}.attn.out.weight: d a")),
        Choice(
            "attention_bias",
            (
                Option(
                    "all",
                    _att(
                        rule(
                            _QKV + "bias: (* a)",
                            "blocks.{i}.attn.{q,k,v}.bias: a",
                            fill={f"blocks.{{i}}.attn.{x}.bias": 0.0 for x in "qkv"},
                        )
                        + rule(BLOCK + "{att}.proj.bias: d", "blocks.{i}.attn.out.bias: d")
                    ),
                ),
                Option("none"),
            ),
        ),
        Choice(
            "mlp",
            (
                Option("MLP", _ff(mlp("0.weight", "3.weight", "0.bias", "3.bias"))),
                # 0.0.1 to 0.0.3 and 0.0.10 to 0.0.11; the keys are the same, so which one is open.
                Option("FusedMLP", _ff(mlp("0.weight", "2.weight", "0.bias", "2.bias"))),
                # 0.0.4 to 0.0.7: both biases are buffers, zero unless somebody set them.
                Option(
                    "FusedMLP-buffers",
                    _ff(mlp("0.weight", "2.weight", "1.bias", "3.bias")),
                    implies=_UNNORMALISED,
                    only={"embedding": ("outside",)},
                ),
                # 0.0.8 to 0.0.9: the bias is a plain tensor and is never saved.
                Option(
                    "FusedMLP-no-bias",
                    _ff(mlp("0.weight", "2.weight")),
                    implies=_UNNORMALISED,
                    only={"embedding": ("outside",)},
                ),
            ),
        ),
    ),
)
