"""lukemelas' PyTorch-Pretrained-ViT: Google's weights in torch, with a layer of representation in a place of its own.

Source: lukemelas/PyTorch-Pretrained-ViT, pytorch_pretrained_vit/model.py and transformer.py, 8ec2cab. With
`load_repr_layer=True` it applies `pre_logits` and tanh to every token ahead of the final norm; Google's code, whose
weights these are, applies them to the pooled token behind it. By default its loader leaves the layer out.
"""

from vitconv.dialects._parts import PLAIN
from vitconv.dialects._ports import AUTHOR, CANNOT
from vitconv.layout.dialect import Dialect
from vitconv.layout.rule import Choice, Option, linear, norm, rule

_B = "transformer.blocks.{i}."

DIALECT = Dialect(
    name="pretrained-vit",
    title="lukemelas' PyTorch-Pretrained-ViT",
    source="lukemelas/PyTorch-Pretrained-ViT pytorch_pretrained_vit/model.py, 8ec2cab",
    library="pytorch_pretrained_vit",
    implies=PLAIN,
    author=AUTHOR,
    entries=(
        *rule("class_token: 1 1 d", "embed.cls: d"),
        *rule("positional_embedding.pos_embedding: 1 (1+n) d", "embed.pos_cls: d", "embed.pos: n d"),
        *linear("patch_embedding", "embed.patch", "d c p q"),
        *norm(_B + "norm1", "blocks.{i}.norm1"),
        *linear(_B + "attn.{proj_q,proj_k,proj_v}", "blocks.{i}.attn.{q,k,v}", "a d", bias=None),
        *rule(
            _B + "attn.{proj_q,proj_k,proj_v}.bias: a",
            "blocks.{i}.attn.{q,k,v}.bias: a",
            fill={f"blocks.{{i}}.attn.{x}.bias": 0.0 for x in "qkv"},
        ),
        *linear(_B + "proj", "blocks.{i}.attn.out", "d a"),
        *norm(_B + "norm2", "blocks.{i}.norm2"),
        *linear(_B + "pwff.fc1", "blocks.{i}.mlp.up", "m d"),
        *linear(_B + "pwff.fc2", "blocks.{i}.mlp.down", "d m"),
        Choice(
            "representation",
            (
                Option("none", without=("trunk_dense.weight",)),
                Option("ahead", linear("pre_logits", "trunk_dense", "d3 d")),
                # Google's layer where Google has it, which this library never computes.
                Option("google", linear("pre_logits", "pool.dense", "d2 d"), foreign=True, asked=True),
            ),
        ),
        *norm("norm", "norm"),
        *linear("fc", "head", "o d", optional=True),
    ),
    cannot=CANNOT
    | {r"^pool\.dense\.": "a layer of representation behind the pooling: it computes one ahead of the final norm"},
    equal=(("a", "d"), ("d3", "d")),
)
