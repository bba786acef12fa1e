"""vit-pytorch's SimpleViT: no class token, a table of sines and cosines made at every run, the mean of the patches.

Source: lucidrains/vit-pytorch, vit_pytorch/simple_vit.py, 0.40.2, 1.2.0 and 1.6.9, and
simple_vit_with_register_tokens.py, 1.26.14 (its registers stand behind the patches; tokens without a position have no
order). The linears of attention have no bias. `--edit make-position:rule=big-vision` writes the table for layouts that
store it.
"""

from vitconv.dialects._parts import PLAIN, why
from vitconv.dialects._vit_pytorch import NORMED, PIXELS, VARIANTS
from vitconv.layout.dialect import Dialect
from vitconv.layout.rule import Choice, Option, linear, norm, rule

_B = "transformer.layers.{i}."
_OLD_END = (*norm("linear_head.0", "pool.norm"), *linear("linear_head.1", "head", "o d"))
_NEW_END = (*norm("transformer.norm", "norm"), *linear("linear_head", "head", "o d"))

DIALECT = Dialect(
    name="vit-pytorch-simple",
    title="vit-pytorch's SimpleViT",
    source="lucidrains/vit-pytorch vit_pytorch/simple_vit.py, 0.40.2 to 1.26.14",
    library="vit_pytorch",
    implies=PLAIN | {"position": "sincos", "pooling": "avg"},
    author={
        "norm_eps": 1e-5,
        "final_norm_eps": 1e-5,
        "embed_norm_eps": 1e-5,
        "activation": "gelu",
        "sincos_rule": "big-vision",
    },
    entries=(
        *rule("register_tokens: r d", "embed.reg: r d", optional=True),
        Choice(
            "generation",
            (
                Option("0.40", _OLD_END, bind={"patch": "1"}, without=(PIXELS,)),
                Option("1.2", (*_OLD_END, *NORMED), bind={"patch": "2"}),
                Option("1.6", (*_NEW_END, *NORMED), bind={"patch": "2"}),
            ),
        ),
        *rule("to_patch_embedding.{patch}.weight: d (p q c)", "embed.patch.weight: d c p q"),
        *rule("to_patch_embedding.{patch}.bias: d", "embed.patch.bias: d", fill={"embed.patch.bias": 0.0}),
        *norm(_B + "0.norm", "blocks.{i}.norm1"),
        *rule(_B + "0.to_qkv.weight: (* a) d", "blocks.{i}.attn.{q,k,v}.weight: a d"),
        *rule(_B + "0.to_out.weight: d a", "blocks.{i}.attn.out.weight: d a"),
        *norm(_B + "1.net.0", "blocks.{i}.norm2"),
        *linear(_B + "1.net.1", "blocks.{i}.mlp.up", "m d"),
        *linear(_B + "1.net.3", "blocks.{i}.mlp.down", "d m"),
    ),
    forbids=VARIANTS,
    derived={f"blocks.{{i}}.attn.{x}.bias": "zero" for x in ("q", "k", "v", "out")}
    | {"embed.pos": "sincos:big-vision"},
    cannot=why("ls", "embed.norm", "pool.dense", "dist", "map")
    | {
        r"^embed\.(cls|pos_cls)$": "a class token",
        r"^embed\.pos_reg$": "positions of registers",
        r"^embed\.mask$": "a mask token",
        r"\.mlp\.gate\.": "a gated MLP (SwiGLU)",
        r"\.attn\.[qk]_norm\.": "norms of queries and keys",
    },
)
