"""jeonsworld's ViT-pytorch: Google's .npz files in torch, the first port that many took.

Source: jeonsworld/ViT-pytorch, models/modeling.py, 460a162. It loads Google's files in their published numbering
(layout vit-jax) and resizes the table as they do; it computes the exact GELU where Google's code takes the tanh form,
and has no layer of representation.
"""

from vitconv.dialects._parts import PLAIN, why
from vitconv.dialects._ports import AUTHOR, CANNOT
from vitconv.layout.dialect import Dialect
from vitconv.layout.rule import Forbid, linear, norm, rule

_E = "transformer.embeddings."
_B = "transformer.encoder.layer.{i}."

DIALECT = Dialect(
    name="jeonsworld",
    title="jeonsworld's ViT-pytorch",
    source="jeonsworld/ViT-pytorch models/modeling.py, 460a162",
    library="jeonsworld",
    implies=PLAIN,
    author=AUTHOR,
    entries=(
        *rule(_E + "cls_token: 1 1 d", "embed.cls: d"),
        *rule(_E + "position_embeddings: 1 (1+n) d", "embed.pos_cls: d", "embed.pos: n d"),
        *linear(_E + "patch_embeddings", "embed.patch", "d c p q"),
        *norm(_B + "attention_norm", "blocks.{i}.norm1"),
        *linear(_B + "attn.{query,key,value}", "blocks.{i}.attn.{q,k,v}", "a d", bias=None),
        *rule(
            _B + "attn.{query,key,value}.bias: a",
            "blocks.{i}.attn.{q,k,v}.bias: a",
            fill={f"blocks.{{i}}.attn.{x}.bias": 0.0 for x in "qkv"},
        ),
        *linear(_B + "attn.out", "blocks.{i}.attn.out", "d a"),
        *norm(_B + "ffn_norm", "blocks.{i}.norm2"),
        *linear(_B + "ffn.fc1", "blocks.{i}.mlp.up", "m d"),
        *linear(_B + "ffn.fc2", "blocks.{i}.mlp.down", "d m"),
        *norm("transformer.encoder.encoder_norm", "norm"),
        *linear("head", "head", "o d", optional=True),
    ),
    forbids=(
        Forbid(
            r"^transformer\.embeddings\.hybrid_model\.",
            "a hybrid: a ResNet stands in front of the patches (R50-ViT-B_16), which has no place in plain layouts",
        ),
        Forbid(
            r"^(transformer\.encoder\.)?(part_layer|part_norm|part_head|part_select)",
            "TransFG's layer that selects parts has no place in plain layouts",
        ),
    ),
    cannot=CANNOT | why("pool.dense"),
    equal=(("a", "d"),),
)
