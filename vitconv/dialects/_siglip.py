"""What transformers' SigLIP and SigLIP 2 vision towers have in common: no class token, an attention-pooling head.

Source: huggingface/transformers, src/transformers/models/siglip/modeling_siglip.py and siglip2/modeling_siglip2.py,
4.57.3 and 5.24.0. The vision-only class lost its prefix in 5.6. The activation is the tanh form of GELU.
"""

from vitconv.dialects._parts import PLAIN, buffers, pool_head, why
from vitconv.layout.dialect import Dialect
from vitconv.layout.rule import Choice, Entry, Forbid, Option, const, linear, norm, rule

_B = "{p}encoder.layers.{i}."
_FACTS = {"norm_eps": 1e-6, "final_norm_eps": 1e-6, "activation": "gelu_tanh", "position": "learned"}


def siglip(name: str, title: str, source: str, patch: tuple[Entry, ...]) -> Dialect:
    """Build the dialect around its patch projection."""
    attention = (
        *rule("{p}head.attention.in_proj_weight: (* u) d", "pool.{q,k,v}.weight: u d"),
        *rule("{p}head.attention.in_proj_bias: (* u)", "pool.{q,k,v}.bias: u"),
        *linear("{p}head.attention.out_proj", "pool.out", "d u"),
    )
    mlp = ("{p}head.mlp.fc1", "{p}head.mlp.fc2")
    return Dialect(
        name=name,
        title=title,
        source=f"huggingface/transformers {source}, 4.57.3 and 5.24.0",
        library="transformers",
        implies=PLAIN,
        author=_FACTS,
        usual=_FACTS,
        entries=(
            Choice("prefix", (Option("vision_model", bind={"p": "vision_model."}), Option("none", bind={"p": ""}))),
            *rule("{p}embeddings.position_embedding.weight: n d", "embed.pos: n d"),
            buffers(*const("{p}embeddings.position_ids: 1 n", "arange", optional=False)),
            *patch,
            *norm(_B + "layer_norm1", "blocks.{i}.norm1"),
            *rule(_B + "self_attn.{q_proj,k_proj,v_proj}.weight: a d", "blocks.{i}.attn.{q,k,v}.weight: a d"),
            *rule(
                _B + "self_attn.{q_proj,k_proj,v_proj}.bias: a",
                "blocks.{i}.attn.{q,k,v}.bias: a",
                fill={f"blocks.{{i}}.attn.{x}.bias": 0.0 for x in "qkv"},
            ),
            *linear(_B + "self_attn.out_proj", "blocks.{i}.attn.out", "d a"),
            *norm(_B + "layer_norm2", "blocks.{i}.norm2"),
            *linear(_B + "mlp.fc1", "blocks.{i}.mlp.up", "m d"),
            *linear(_B + "mlp.fc2", "blocks.{i}.mlp.down", "d m"),
            *norm("{p}post_layernorm", "norm"),
            Choice(
                "head",
                (
                    Option(
                        "map",
                        pool_head("{p}head.probe: 1 1 d", attention, "{p}head.layernorm", mlp),
                        implies={"pooling": "map"},
                    ),
                    Option("none", without=("pool.probe",)),
                ),
            ),
        ),
        forbids=(Forbid(r"^classifier\.", "SigLIP's classifier reads the mean of the patches, past the pooling head"),),
        cannot=why("ls", "embed.norm", "pool.dense", "pool.norm", "dist")
        | {
            r"^embed\.(cls|pos_cls)$": "a class token",
            r"^embed\.(reg|pos_reg)$": "register tokens",
            r"^head\.": "a classifier after its pooling head",
            r"\.mlp\.gate\.": "a gated MLP (SwiGLU)",
            r"\.attn\.[qk]_norm\.": "norms of queries and keys",
        },
        equal=(("a", "d"), ("u", "d")),
    )
