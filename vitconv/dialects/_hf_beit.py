"""What transformers' BEiT is on disk and in memory.

Source: huggingface/transformers, src/transformers/models/beit/modeling_beit.py, 4.57.3 (names on disk) and 5.24.0 (in
memory). The key has no bias. A model that pools the patches norms them in `pooler.layernorm` and has no `layernorm`;
the one for masked modelling norms once behind the trunk, and before that in the trunk unless it is told to pool.
"""

from vitconv.dialects._hf import Names
from vitconv.dialects._parts import PLAIN, TABLE, buffers, why
from vitconv.layout.dialect import Dialect
from vitconv.layout.rule import Choice, Option, const, linear, norm, rule

_K = "blocks.{i}.attn.k.bias"
_QV: dict[str, float | str] = {f"blocks.{{i}}.attn.{x}.bias": 0.0 for x in "qv"}
_TABLE = "relative_position_bias_table: (l+3) h"


def beit(name: str, title: str, source: str, names: Names, own: str, shared: str) -> Dialect:
    """Build the dialect of one epoch; `own` and `shared` are the paths of the tables of relative positions."""
    b = "{p}" + names.block
    weights = names.qkv + ".weight: a d"
    biases = names.qkv.replace("key,", "").replace("k_proj,", "")
    return Dialect(
        name=name,
        title=title,
        source=f"huggingface/transformers models/beit/modeling_beit.py, {source}",
        library="transformers",
        implies=PLAIN | {"position": ("relative", *TABLE)},
        usual={"norm_eps": 1e-12, "final_norm_eps": 1e-12, "activation": "gelu"},
        entries=(
            Choice(
                "model",
                (
                    Option("classification", linear("classifier", "head", "o d"), bind={"p": "beit."}),
                    Option("base", bind={"p": ""}, without=("mim.weight",)),
                    Option(
                        "masked",
                        (*linear("lm_head", "mim", "s d"), *norm("layernorm", "norm")),
                        bind={"p": "beit."},
                        only={"norm": ("trunk", "none")},
                    ),
                ),
            ),
            Choice(
                "norm",
                (
                    Option("pooled", norm("{p}pooler.layernorm", "pool.norm"), implies={"pooling": "avg"}),
                    Option("final", norm("{p}layernorm", "norm"), only={"model": ("classification", "base")}),
                    Option("trunk", norm("{p}layernorm", "trunk_norm"), only={"model": ("masked",)}),
                    # Where patches are to be pooled the trunk has no norm of its own, and masked modelling no pooler.
                    Option("none", only={"model": ("masked",)}, without=("trunk_norm.weight",)),
                ),
            ),
            Choice(
                "relative_positions",
                (
                    Option(
                        "per-block",
                        rule(b + own + _TABLE, "blocks.{i}.attn.rel_pos: l h", "blocks.{i}.attn.rel_pos_cls: 3 h"),
                        bind={"r": b + own},
                    ),
                    Option(
                        "shared",
                        rule("{p}" + shared + _TABLE, "rel_pos: l h", "rel_pos_cls: 3 h"),
                        bind={"r": "{p}" + shared},
                    ),
                    Option("none", without=("rel_pos", "blocks.{i}.attn.rel_pos")),
                ),
            ),
            # Older releases of version 4 keep it in the file.
            buffers(
                *const("{r}relative_position_index: j k", "class-index", optional=False),
                only={"relative_positions": ("per-block", "shared")},
            ),
            *rule("{p}embeddings.cls_token: 1 1 d", "embed.cls: d"),
            *rule("{p}embeddings.mask_token: 1 1 d", "embed.mask: d", optional=True),
            *rule("{p}embeddings.position_embeddings: 1 (1+n) d", "embed.pos_cls: d", "embed.pos: n d", optional=True),
            *linear("{p}embeddings.patch_embeddings.projection", "embed.patch", "d c p q"),
            *norm(b + "layernorm_before", "blocks.{i}.norm1"),
            *rule(b + weights, "blocks.{i}.attn.{q,k,v}.weight: a d"),
            *rule(b + biases + ".bias: a", "blocks.{i}.attn.{q,v}.bias: a", fill=_QV),
            *linear(b + names.out, "blocks.{i}.attn.out", "d a"),
            # A layer scale of zero turns it off; without one the layout is ViT's but for the missing key bias.
            *rule(b + "lambda_1: d", "blocks.{i}.ls1: d", optional=True, group="layer_scale"),
            *norm(b + "layernorm_after", "blocks.{i}.norm2"),
            *linear(b + names.up, "blocks.{i}.mlp.up", "m d"),
            *linear(b + names.down, "blocks.{i}.mlp.down", "d m"),
            *rule(b + "lambda_2: d", "blocks.{i}.ls2: d", optional=True, group="layer_scale"),
        ),
        derived={_K: "zero"},
        cannot=why("embed.norm", "pool.dense", "dist", "map")
        | {
            r"^embed\.(reg|pos_reg)$": "register tokens",
            r"\.mlp\.gate\.": "a gated MLP (SwiGLU)",
            r"\.attn\.[qk]_norm\.": "norms of queries and keys",
        },
        equal=(("a", "d"),),
    )
