"""What CLIP's vision towers have in common: a norm before the blocks, a class token, a projection without bias.

Source: openai/CLIP, clip/model.py, d05afc4; mlfoundations/open_clip, src/open_clip/transformer.py, 3.3.0;
huggingface/transformers, models/clip/modeling_clip.py. The projection is the classifier of other codebases: the same
product with the pooled class token, stored transposed by the first two.
"""

from vitconv.dialects._parts import PLAIN, why
from vitconv.layout.rule import Entry, Forbid, Rule, linear, norm, rule

CLIP = PLAIN
# OpenAI's networks and their copies in transformers.
OPENAI = {
    "norm_eps": 1e-5,
    "final_norm_eps": 1e-5,
    "embed_norm_eps": 1e-5,
    "activation": "quick_gelu",
    "pooling": "token",
    "position": "learned",
}
CANNOT = why("pool.dense", "dist", "map") | {
    r"^embed\.(reg|pos_reg)$": "register tokens",
    r"^embed\.mask$": "a mask token",
    r"\.mlp\.gate\.": "a gated MLP (SwiGLU)",
    r"\.attn\.[qk]_norm\.": "norms of queries and keys",
    r"^head\.bias$": "a bias of the projection",
}
# Whose text tower, beside it, has the names of the blocks of a vision transformer.
RESNET = Forbid(r"^(visual\.)?(layer[1-4]|attnpool)\.", "a ResNet (CLIP has one too), not a vision transformer")
DERIVED = {"head.bias": "zero", "embed.patch.bias": "zero"}


def tower(prefix: str = "") -> tuple[Entry, ...]:
    """Build the vision tower as OpenAI and open_clip name it."""
    b = prefix + "transformer.resblocks.{i}."
    return (
        *rule(prefix + "class_embedding: d", "embed.cls: d"),
        *rule(prefix + "positional_embedding: (1+n) d", "embed.pos_cls: d", "embed.pos: n d"),
        *rule(prefix + "conv1.weight: d c p q", "embed.patch.weight: d c p q"),
        *norm(b + "ln_1", "blocks.{i}.norm1"),
        *rule(b + "attn.in_proj_weight: (* a) d", "blocks.{i}.attn.{q,k,v}.weight: a d"),
        *rule(
            b + "attn.in_proj_bias: (* a)",
            "blocks.{i}.attn.{q,k,v}.bias: a",
            fill={f"blocks.{{i}}.attn.{x}.bias": 0.0 for x in "qkv"},
        ),
        *linear(b + "attn.out_proj", "blocks.{i}.attn.out", "d a"),
        *norm(b + "ln_2", "blocks.{i}.norm2"),
        *linear(b + "mlp.c_fc", "blocks.{i}.mlp.up", "m d"),
        *linear(b + "mlp.c_proj", "blocks.{i}.mlp.down", "d m"),
    )


def projection(key: str, *, transposed: bool) -> tuple[Rule, ...]:
    """Build the projection, which has no bias; some networks leave it out."""
    axes = "d o" if transposed else "o d"
    return rule(f"{key}: {axes}", "head.weight: o d", optional=True)
