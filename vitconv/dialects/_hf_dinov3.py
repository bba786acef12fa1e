"""What transformers' DINOv3 is on disk and in memory: rotary positions whose periods are not stored.

Source: huggingface/transformers, src/transformers/models/dinov3_vit/modeling_dinov3_vit.py, 4.57.3 and 5.24.0. Each
projection has a bias of its own or none; the key has none by default. The gate is activated by `hidden_act` too, which
must then be silu.
"""

from vitconv.dialects._parts import PLAIN, ROWS_FIRST, ones, why
from vitconv.layout.dialect import Dialect
from vitconv.layout.rule import Choice, Option, linear, norm, rule

_GATE = "blocks.{i}.mlp.gate.weight"


def dinov3(name: str, title: str, source: str, block: str) -> Dialect:
    """Build the dialect whose blocks are under `block`."""
    return Dialect(
        name=name,
        title=title,
        source=f"huggingface/transformers models/dinov3_vit/modeling_dinov3_vit.py, {source}",
        library="transformers",
        implies=PLAIN | ROWS_FIRST | {"position": "rope", "rope_layout": "half", "rope_places": "separate"},
        usual={"norm_eps": 1e-5, "final_norm_eps": 1e-5, "activation": "gelu", "rope_theta": 100.0},
        entries=(
            *rule("embeddings.cls_token: 1 1 d", "embed.cls: d"),
            *rule("embeddings.mask_token: 1 1 d", "embed.mask: d", fill={"embed.mask": 0.0}),
            # Without registers the library holds a table of no rows.
            *rule("embeddings.register_tokens: 1 r d", "embed.reg: r d", fill={"embed.reg": 0.0}),
            *linear("embeddings.patch_embeddings", "embed.patch", "d c p q"),
            *norm(block + "norm1", "blocks.{i}.norm1"),
            *rule(block + "attention.{q_proj,k_proj,v_proj}.weight: a d", "blocks.{i}.attn.{q,k,v}.weight: a d"),
            *rule(block + "attention.{q_proj,k_proj,v_proj}.bias: a", "blocks.{i}.attn.{q,k,v}.bias: a", optional=True),
            *linear(block + "attention.o_proj", "blocks.{i}.attn.out", "d a", bias=False),
            *ones(block + "layer_scale1.lambda1", "blocks.{i}.ls1"),
            *norm(block + "norm2", "blocks.{i}.norm2"),
            *linear(block + "mlp.up_proj", "blocks.{i}.mlp.up", "m d", bias=False),
            Choice(
                "mlp",
                (
                    Option("mlp", without=(_GATE,)),
                    Option(
                        "gated",
                        linear(block + "mlp.gate_proj", "blocks.{i}.mlp.gate", "m d", bias=False),
                        author={"activation": "silu"},
                    ),
                ),
            ),
            *linear(block + "mlp.down_proj", "blocks.{i}.mlp.down", "d m", bias=False),
            *ones(block + "layer_scale2.lambda1", "blocks.{i}.ls2"),
            *norm("norm", "norm"),
        ),
        derived={"rope.periods": "rope-periods:100"},
        cannot=why("embed.norm", "pool.norm", "pool.dense", "dist", "map")
        | {
            r"^embed\.pos": "a position table; it turns queries and keys instead",
            r"\.attn\.[qk]_norm\.": "norms of queries and keys",
            r"^norm_cls\.": "a second final norm for the class token and the registers",
            r"^head\.": "a classifier",
        },
        equal=(("a", "d"),),
    )
