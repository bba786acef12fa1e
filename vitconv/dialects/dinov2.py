"""DINOv2 (facebookresearch), with and without registers, plain or SwiGLU.

Source: facebookresearch/dinov2, dinov2/models/vision_transformer.py and layers/, b8931f7. Registers come after the
positions are added, so they have none. Training keeps the blocks in chunks, `blocks.{chunk}.{i}`, numbered throughout:
that numbering is taken off when a file is read, and put back on request. The table is resized with 0.1 added to the
sides, without antialias; in the models with registers by size, with antialias.
"""

from vitconv.dialects._parts import BLOCK, PLAIN, fused, scaled, why
from vitconv.layout.dialect import Dialect
from vitconv.layout.rule import Choice, Option, linear, norm, rule

_GATE = "blocks.{i}.mlp.gate.weight"

DIALECT = Dialect(
    name="dinov2",
    title="DINOv2 of facebookresearch",
    source="facebookresearch/dinov2 dinov2/models/vision_transformer.py, b8931f7",
    library="dinov2",
    implies=PLAIN,
    author={
        "norm_eps": 1e-6,
        "final_norm_eps": 1e-6,
        "activation": "gelu",
        "pooling": "token",
        "position": "learned",
    },
    entries=(
        *rule("cls_token: 1 1 d", "embed.cls: d"),
        *rule("pos_embed: 1 (1+n) d", "embed.pos_cls: d", "embed.pos: n d"),
        Choice(
            "registers",
            (
                Option("none", without=("embed.reg",), author={"position_resize": "bicubic-offset"}),
                Option(
                    "true",
                    rule("register_tokens: 1 r d", "embed.reg: r d"),
                    author={"position_resize": "bicubic-antialias"},
                ),
            ),
        ),
        Choice(
            "mask",
            (
                Option("true", rule("mask_token: 1 d", "embed.mask: d", fill={"embed.mask": 0.0})),
                Option("stripped", read_only=True),
            ),
        ),
        *linear("patch_embed.proj", "embed.patch", "d c p q"),
        *norm(BLOCK + "norm1", "blocks.{i}.norm1"),
        *fused(BLOCK + "attn.qkv.weight", BLOCK + "attn.qkv.bias"),
        *linear(BLOCK + "attn.proj", "blocks.{i}.attn.out", "d a", bias=False),
        *norm(BLOCK + "norm2", "blocks.{i}.norm2"),
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
                        *rule(BLOCK + "mlp.w12.weight: (* m) d", "blocks.{i}.mlp.{gate,up}.weight: m d"),
                        *rule(BLOCK + "mlp.w12.bias: (* m)", "blocks.{i}.mlp.{gate,up}.bias: m", optional=True),
                        *linear(BLOCK + "mlp.w3", "blocks.{i}.mlp.down", "d m", bias=False),
                    ),
                    implies={"activation": "silu"},
                ),
            ),
        ),
        scaled(BLOCK + "ls1.gamma", BLOCK + "ls2.gamma"),
        *norm("norm", "norm"),
    ),
    cannot=why("embed.norm", "pool.norm", "pool.dense", "dist", "map")
    | {
        r"^head\.": "a classifier; DINOv2's heads are files of their own",
        r"\.attn\.[qk]_norm\.": "norms of queries and keys",
    },
    equal=(("a", "d"),),
    under="timm",
    chunked="blocks.",
)
