"""vit-pytorch (lucidrains): four generations of keys, no bias on q, k, v, patches over rows, columns, channels.

Source: lucidrains/vit-pytorch, vit_pytorch/vit.py, 0.40.2, 1.2.0, 1.6.9 and 1.26.14. From 1.2.0 on a norm over the
pixels stands before the patch projection, which no other codebase has, and one after it. Before 1.6 the last norm
stands in the head, behind the pooling. One head as wide as the network has no output projection; such a file is not
carried.
"""

from vitconv.dialects._parts import PLAIN, why
from vitconv.dialects._vit_pytorch import NORMED, PIXELS, VARIANTS
from vitconv.layout.dialect import Dialect
from vitconv.layout.rule import Choice, Entry, Option, const, linear, norm, rule

_B = "transformer.layers.{i}."
_BATCHED = (
    *rule("cls_token: 1 1 d", "embed.cls: d"),
    *rule("pos_embedding: 1 (1+n) d", "embed.pos_cls: d", "embed.pos: n d"),
)


def _branches(attn: str, mlp_norm: str, up: str, down: str) -> tuple[Entry, ...]:
    return (
        *rule(_B + attn + "to_qkv.weight: (* a) d", "blocks.{i}.attn.{q,k,v}.weight: a d"),
        *linear(_B + attn + "to_out.0", "blocks.{i}.attn.out", "d a"),
        *norm(_B + mlp_norm, "blocks.{i}.norm2"),
        *linear(_B + up, "blocks.{i}.mlp.up", "m d"),
        *linear(_B + down, "blocks.{i}.mlp.down", "d m"),
    )


_OLD = _branches("0.fn.", "1.norm", "1.fn.net.0", "1.fn.net.3")
_NEW = _branches("0.", "1.net.0", "1.net.1", "1.net.4")
_OLD_END = (*norm("mlp_head.0", "norm"), *linear("mlp_head.1", "head", "o d"))
_MEAN_END = (*norm("mlp_head.0", "pool.norm"), *linear("mlp_head.1", "head", "o d"))
_NEW_END = (*norm("transformer.norm", "norm"), *linear("mlp_head", "head", "o d"))
_TOKEN, _MEAN = {"pooling": "token"}, {"pooling": "avg-prefix"}

DIALECT = Dialect(
    name="vit-pytorch",
    title="vit-pytorch",
    source="lucidrains/vit-pytorch vit_pytorch/vit.py, 0.40.2 to 1.26.14",
    library="vit_pytorch",
    implies=PLAIN,
    author={
        "norm_eps": 1e-5,
        "final_norm_eps": 1e-5,
        "embed_norm_eps": 1e-5,
        "activation": "gelu",
        "pooling": "token",
        "position": "learned",
    },
    entries=(
        Choice(
            "generation",
            (
                Option("0.40", (*_BATCHED, *_OLD, *_OLD_END), bind={"patch": "1"}, without=(PIXELS,), implies=_TOKEN),
                Option("1.2", (*_BATCHED, *_OLD, *_OLD_END, *NORMED), bind={"patch": "2"}, implies=_TOKEN),
                # Pooled by the mean these norm after it, which no key tells.
                Option(
                    "0.40-mean",
                    (*_BATCHED, *_OLD, *_MEAN_END),
                    bind={"patch": "1"},
                    without=(PIXELS,),
                    implies=_MEAN,
                    asked=True,
                ),
                Option(
                    "1.2-mean", (*_BATCHED, *_OLD, *_MEAN_END, *NORMED), bind={"patch": "2"}, implies=_MEAN, asked=True
                ),
                Option("1.6", (*_BATCHED, *_NEW, *_NEW_END, *NORMED), bind={"patch": "2"}),
                Option(
                    "1.26",
                    (
                        *rule("cls_token: 1 d", "embed.cls: d"),
                        *rule("pos_embedding: (1+n) d", "embed.pos_cls: d", "embed.pos: n d"),
                        *_NEW,
                        *_NEW_END,
                        *NORMED,
                    ),
                    bind={"patch": "2"},
                ),
                # Pooled by the mean, it keeps a class token of no rows.
                Option(
                    "1.26-mean",
                    (
                        *const("cls_token: 0 d", 0.0, dtype="float", optional=False),
                        *rule("pos_embedding: n d", "embed.pos: n d"),
                        *_NEW,
                        *_NEW_END,
                        *NORMED,
                    ),
                    bind={"patch": "2"},
                    without=("embed.cls",),
                    implies={"pooling": "avg"},
                ),
            ),
        ),
        *rule("to_patch_embedding.{patch}.weight: d (p q c)", "embed.patch.weight: d c p q"),
        *rule("to_patch_embedding.{patch}.bias: d", "embed.patch.bias: d", fill={"embed.patch.bias": 0.0}),
        *norm(_B + "0.norm", "blocks.{i}.norm1"),
    ),
    forbids=VARIANTS,
    derived={f"blocks.{{i}}.attn.{x}.bias": "zero" for x in "qkv"},
    cannot=why("ls", "embed.norm", "pool.dense", "dist", "map")
    | {
        r"^embed\.(reg|pos_reg)$": "register tokens",
        r"^embed\.mask$": "a mask token",
        r"\.mlp\.gate\.": "a gated MLP (SwiGLU)",
        r"\.attn\.[qk]_norm\.": "norms of queries and keys",
    },
)
