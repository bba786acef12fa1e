"""DINOv3 (facebookresearch): rotary positions, storage tokens, a key bias that a mask puts to zero.

Source: facebookresearch/dinov3, dinov3/models/vision_transformer.py, layers/attention.py and rope_position_encoding.py,
6876159. `rope_embed.periods` is stored, 100^(k / (e/4)) unless configured otherwise; a pair is split over
the two halves of a head.
`bias_mask` is one, zero, one over q, k and v. `local_cls_norm` is used in training only.
"""

from vitconv.dialects._parts import BLOCK, PLAIN, ROWS_FIRST, scaled, why
from vitconv.layout.dialect import Dialect
from vitconv.layout.rule import Choice, Option, const, linear, norm, rule

_GATE = "blocks.{i}.mlp.gate.weight"
_Q, _K, _V = (f"blocks.{{i}}.attn.{x}.bias" for x in "qkv")
_MORE = (("cls_norm", "norm_cls"), ("local_cls_norm", "norm_local"))
_NORMS = (
    (BLOCK + "norm1", "blocks.{i}.norm1"),
    (BLOCK + "norm2", "blocks.{i}.norm2"),
    ("norm", "norm"),
    *_MORE,
)

DIALECT = Dialect(
    name="dinov3",
    title="DINOv3 of facebookresearch",
    source="facebookresearch/dinov3 dinov3/models/vision_transformer.py, 6876159",
    library="dinov3",
    implies=PLAIN | ROWS_FIRST | {"position": "rope", "rope_layout": "half", "rope_places": ("separate", "min", "max")},
    author={
        "norm_eps": 1e-5,
        "final_norm_eps": 1e-5,
        "activation": "gelu",
        "pooling": "token",
        "rope_theta": 100.0,
        "rope_places": "separate",
    },
    entries=(
        *rule("cls_token: 1 1 d", "embed.cls: d"),
        *rule("storage_tokens: 1 r d", "embed.reg: r d", optional=True),
        *rule("mask_token: 1 d", "embed.mask: d", fill={"embed.mask": 0.0}),
        *rule("rope_embed.periods: f", "rope.periods: f", fill={"rope.periods": "rope-periods:100"}),
        *linear("patch_embed.proj", "embed.patch", "d c p q"),
        *rule(BLOCK + "attn.qkv.weight: (* a) d", "blocks.{i}.attn.{q,k,v}.weight: a d"),
        Choice(
            "qkv_bias",
            (
                Option(
                    "masked",
                    (
                        *rule(
                            BLOCK + "attn.qkv.bias: (* a)",
                            f"{_Q}: a",
                            "blocks.{i}.attn.k_masked: a",
                            f"{_V}: a",
                            fill={"blocks.{i}.attn.k_masked": 0.0},
                        ),
                        *const(BLOCK + "attn.qkv.bias_mask: (* a)", (1.0, 0.0, 1.0), dtype="float", optional=False),
                    ),
                    without=(_K,),
                ),
                Option(
                    "true",
                    rule(BLOCK + "attn.qkv.bias: (* a)", f"{_Q}: a", f"{_K}: a", f"{_V}: a", fill={_K: 0.0}),
                ),
                Option("false", without=(_Q, _K, _V)),
            ),
        ),
        *linear(BLOCK + "attn.proj", "blocks.{i}.attn.out", "d a", bias=False),
        Choice(
            "mlp",
            (
                Option(
                    "mlp",
                    (
                        *linear(BLOCK + "mlp.fc1", "blocks.{i}.mlp.up", "m d", bias=False),
                        *linear(BLOCK + "mlp.fc2", "blocks.{i}.mlp.down", "d m", bias=False),
                    ),
                    without=(_GATE,),
                ),
                Option(
                    "swiglu",
                    (
                        *linear(BLOCK + "mlp.w1", "blocks.{i}.mlp.gate", "m d", bias=False),
                        *linear(BLOCK + "mlp.w2", "blocks.{i}.mlp.up", "m d", bias=False),
                        *linear(BLOCK + "mlp.w3", "blocks.{i}.mlp.down", "d m", bias=False),
                    ),
                    implies={"activation": "silu"},
                ),
            ),
        ),
        scaled(BLOCK + "ls1.gamma", BLOCK + "ls2.gamma"),
        Choice(
            "norm_layer",
            (
                Option("layernorm", tuple(r for n in _NORMS for r in norm(*n, optional=n in _MORE))),
                # Its code computes it in float32, whatever the network is in.
                Option(
                    "rmsnorm",
                    tuple(
                        r
                        for own, part in _NORMS
                        for r in rule(f"{own}.weight: d", f"{part}.weight: d", optional=(own, part) in _MORE)
                    ),
                    without=("blocks.{i}.norm1.bias",),
                    implies={"norm_kind": "rmsnorm"},
                ),
            ),
        ),
    ),
    cannot=why("embed.norm", "pool.norm", "pool.dense", "dist", "map")
    | {
        r"^embed\.pos": "a position table; it turns queries and keys instead",
        r"\.attn\.[qk]_norm\.": "norms of queries and keys",
        r"^head\.": "a classifier",
    },
    equal=(("a", "d"),),
)
