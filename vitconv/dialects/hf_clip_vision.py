"""transformers' CLIP, vision tower, with the projection or without.

Source: huggingface/transformers, src/transformers/models/clip/modeling_clip.py, 4.57.3 and 5.24.0. `pre_layrnorm` is
upstream's spelling. The vision-only class lost its prefix in 5.6. Older files keep `position_ids`. Only the pooled
class token is normed at the end.
"""

from vitconv.dialects._clip import CANNOT, CLIP, DERIVED, OPENAI, projection
from vitconv.dialects._parts import buffers, why
from vitconv.layout.dialect import Dialect
from vitconv.layout.rule import Choice, Forbid, Option, const, linear, norm, rule

_B = "{p}encoder.layers.{i}."

DIALECT = Dialect(
    name="hf-clip-vision",
    title="transformers CLIP, vision tower",
    source="huggingface/transformers models/clip/modeling_clip.py, 4.57.3 and 5.24.0",
    library="transformers",
    implies=CLIP | {"pooling": "token"},
    author=OPENAI,
    usual=OPENAI,
    entries=(
        Choice(
            "prefix",
            (
                Option(
                    "vision_model",
                    projection("visual_projection.weight", transposed=False),
                    bind={"p": "vision_model."},
                ),
                Option("none", bind={"p": ""}),
            ),
        ),
        *rule("{p}embeddings.class_embedding: d", "embed.cls: d"),
        *rule("{p}embeddings.position_embedding.weight: (1+n) d", "embed.pos_cls: d", "embed.pos: n d"),
        buffers(*const("{p}embeddings.position_ids: 1 (1+n)", "arange", optional=False)),
        *rule("{p}embeddings.patch_embedding.weight: d c p q", "embed.patch.weight: d c p q"),
        *norm("{p}pre_layrnorm", "embed.norm"),
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
    ),
    forbids=(Forbid(r"^classifier\.", "CLIP's classifier reads the mean of the patches before the final norm"),),
    derived=DERIVED,
    cannot=CANNOT | why("ls", "pool.norm"),
    equal=(("a", "d"),),
)
