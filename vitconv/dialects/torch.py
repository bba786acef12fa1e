"""torch's nn.TransformerEncoder: a bare trunk, whose norms stand after the branches unless norm_first says otherwise.

Source: pytorch/pytorch, torch/nn/modules/transformer.py, 2.14.1. The class's own defaults are post-norm, relu and eps
1e-5; no key tells.
"""

from vitconv.dialects._parts import TABLE, ZERO_QKV
from vitconv.layout.dialect import Dialect
from vitconv.layout.rule import Rule, norm, rule

_B = "layers.{i}."


def _biased(whole: str, part: str, **fill: float | str) -> tuple[Rule, ...]:
    """Build a bias; `bias=False` leaves all of them out."""
    return rule(whole, part, optional=True, group="bias", fill=fill)


DIALECT = Dialect(
    name="torch",
    title="torch nn.TransformerEncoder",
    source="pytorch/pytorch torch/nn/modules/transformer.py, 2.14.1",
    library="torch",
    implies={
        "norm_placement": ("post", "pre"),
        "norm_kind": "layernorm",
        "kv_normalised": True,
        "attention": "softmax",
        "position": TABLE,
    },
    author={"norm_eps": 1e-5, "final_norm_eps": 1e-5},
    entries=(
        *rule(_B + "self_attn.in_proj_weight: (* a) d", "blocks.{i}.attn.{q,k,v}.weight: a d"),
        *_biased(_B + "self_attn.in_proj_bias: (* a)", "blocks.{i}.attn.{q,k,v}.bias: a", **ZERO_QKV),
        *rule(_B + "self_attn.out_proj.weight: d a", "blocks.{i}.attn.out.weight: d a"),
        *_biased(_B + "self_attn.out_proj.bias: d", "blocks.{i}.attn.out.bias: d", **{"blocks.{i}.attn.out.bias": 0.0}),
        *rule(_B + "linear1.weight: m d", "blocks.{i}.mlp.up.weight: m d"),
        *_biased(_B + "linear1.bias: m", "blocks.{i}.mlp.up.bias: m"),
        *rule(_B + "linear2.weight: d m", "blocks.{i}.mlp.down.weight: d m"),
        *_biased(_B + "linear2.bias: d", "blocks.{i}.mlp.down.bias: d"),
        *rule(_B + "{norm1,norm2}.weight: d", "blocks.{i}.{norm1,norm2}.weight: d"),
        *_biased(_B + "{norm1,norm2}.bias: d", "blocks.{i}.{norm1,norm2}.bias: d"),
        *norm("norm", "norm", optional=True),
    ),
    cannot={
        r"^embed\.": "anything before the blocks: it is a trunk, its input are tokens",
        r"^(head|head_dist|pool)\.": "anything after the trunk",
    },
    equal=(("a", "d"),),
)
