"""What the first authors' own vision transformers have in common: timm's old keys, each with its own tokens.

Source: facebookresearch/dino (vision_transformer.py), mae (models_mae.py), moco-v3 (vits.py), ijepa
(src/models/vision_transformer.py), deit (models.py, models_v2.py): all are timm's VisionTransformer or a copy of it.
"""

from vitconv.dialects._parts import BLOCK, PLAIN, fused, why
from vitconv.layout.dialect import Dialect
from vitconv.layout.rule import Doubt, Entry, Forbid, linear, norm, rule

CLASS_AND_PATCHES = rule("pos_embed: 1 (1+n) d", "embed.pos_cls: d", "embed.pos: n d")
CLASS = rule("cls_token: 1 1 d", "embed.cls: d")
PATCH = linear("patch_embed.proj", "embed.patch", "d c p q")
# torch's LayerNorm with eps 1e-6 and the exact GELU, as all of these are built by their authors.
AUTHOR = {"norm_eps": 1e-6, "final_norm_eps": 1e-6, "activation": "gelu"}
# These five were written before registers, gates and norms of queries and keys.
CANNOT = why("ls", "embed.norm", "pool.dense", "map") | {
    r"^embed\.(reg|pos_reg)$": "register tokens",
    r"\.mlp\.gate\.": "a gated MLP (SwiGLU)",
    r"\.attn\.[qk]_norm\.": "norms of queries and keys",
}


def blocks() -> tuple[Entry, ...]:
    """Build the blocks of timm's first vision transformer."""
    return (
        *norm(BLOCK + "norm1", "blocks.{i}.norm1"),
        *fused(BLOCK + "attn.qkv.weight", BLOCK + "attn.qkv.bias"),
        *linear(BLOCK + "attn.proj", "blocks.{i}.attn.out", "d a"),
        *norm(BLOCK + "norm2", "blocks.{i}.norm2"),
        *linear(BLOCK + "mlp.fc1", "blocks.{i}.mlp.up", "m d"),
        *linear(BLOCK + "mlp.fc2", "blocks.{i}.mlp.down", "d m"),
    )


def first(
    name: str,
    title: str,
    source: str,
    entries: tuple[Entry, ...],
    *,
    author: dict[str, object],
    cannot: dict[str, str] | None = None,
    forbids: tuple[Forbid, ...] = (),
    under: str = "timm",
    doubts: tuple[Doubt, ...] = (),
) -> Dialect:
    """Build the dialect of one of the authors' repositories."""
    return Dialect(
        name=name,
        title=title,
        source=f"facebookresearch/{source}",
        library=name,
        implies=PLAIN,
        author=AUTHOR | author,
        entries=entries,
        forbids=forbids,
        cannot=CANNOT | (cannot or {}),
        equal=(("a", "d"),),
        under=under,
        doubts=doubts,
    )
