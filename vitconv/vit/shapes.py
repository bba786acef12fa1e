"""Canonical shapes to sizes and flags, and back; no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from vitconv.errors import Refused
from vitconv.layout.canonical import SCHEMA, layer_of, stack_of, template_of

if TYPE_CHECKING:
    from vitconv.vit.config import ViTConfig

Shapes = dict[str, tuple[int, ...]]

_BLOCK = "blocks.0."
INERT = ("decoder", "mim", "norm_local")


def read_sizes(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    """Return the fields of a `ViTConfig` that the tensors state.

    `shapes`: {canonical name: shape}. Flags are read off block 0; `compare` finds blocks that differ.

    Raises:
        Refused: a name is not canonical, or the blocks are missing.
    """
    foreign = sorted(name for name in shapes if template_of(name) not in SCHEMA)
    if foreign:
        raise Refused(f"not tensors of the plain ViT: {', '.join(foreign)}")
    must = [f"{_BLOCK}{n}.weight" for n in ("attn.q", "attn.out", "mlp.up", "mlp.down")]
    absent = [name for name in must if name not in shapes]
    if absent:
        raise Refused(f"a ViT needs {', '.join(absent)}")
    d = shapes[f"{_BLOCK}attn.q.weight"][1]
    # Without a patch projection it is a bare trunk, on tokens.
    _, c, p, q = shapes.get("embed.patch.weight", (d, 0, 1, 1))
    layers = {i for name in shapes if (i := layer_of(name)) is not None and not stack_of(name)}
    has = shapes.__contains__
    return {
        "width": d,
        "channels": c,
        "patch": (p, q),
        "depth": max(layers) + 1,
        "attention_width": shapes[f"{_BLOCK}attn.q.weight"][0],
        "mlp_width": shapes[f"{_BLOCK}mlp.up.weight"][0],
        "positions": shapes["embed.pos"][0] if has("embed.pos") else 0,
        "rows": shapes.get("embed.pos_y", (0,))[0],
        "columns": shapes.get("embed.pos_x", (0,))[0],
        "classes": shapes["head.weight"][0] if has("head.weight") else 0,
        "classes_dist": shapes["head_dist.weight"][0] if has("head_dist.weight") else 0,
        "registers": shapes["embed.reg"][0] if has("embed.reg") else 0,
        "cls": has("embed.cls"),
        "dist": has("embed.dist"),
        "mask": has("embed.mask"),
        "pos_cls": has("embed.pos_cls"),
        "pos_dist": has("embed.pos_dist"),
        "pos_reg": has("embed.pos_reg"),
        "patch_bias": has("embed.patch.bias") or not c,
        **{f"{part}_bias": has(f"{_BLOCK}attn.{part}.bias") for part in ("q", "k", "v", "out")},
        "mlp_bias": has(f"{_BLOCK}mlp.up.bias"),
        "block_norms": has(f"{_BLOCK}norm1.weight"),
        "norm_bias": any(has(f"{name}.bias") for name in _norms(has)),
        "qk_norm": has(f"{_BLOCK}attn.q_norm.weight"),
        "qk_norm_bias": has(f"{_BLOCK}attn.q_norm.bias"),
        "attn_norm": has(f"{_BLOCK}attn.norm.weight"),
        "layer_scale": has(f"{_BLOCK}ls1"),
        "gated": has(f"{_BLOCK}mlp.gate.weight"),
        "mlp_norm": has(f"{_BLOCK}mlp.norm.weight"),
        "embed_norm": has("embed.norm.weight"),
        "trunk_norm": has("trunk_norm.weight"),
        "trunk_dense": has("trunk_dense.weight"),
        "norm": has("norm.weight"),
        "pool_norm": has("pool.norm.weight"),
        "pool_dense": shapes["pool.dense.weight"][0] if has("pool.dense.weight") else 0,
        "head_bias": has("head.bias") or not has("head.weight"),
        "k_masked": has(f"{_BLOCK}attn.k_masked"),
        "relative": shapes.get("rel_pos", shapes.get(f"{_BLOCK}attn.rel_pos", (0,)))[0],
        "relative_shared": has("rel_pos"),
        "periods": shapes.get("rope.periods", (0,))[0],
        "mixed": has(f"{_BLOCK}attn.rope"),
        "twin": has(f"{_BLOCK}twin.norm1.weight"),
        "norm_cls": has("norm_cls.weight"),
        "pixel_norm": has("embed.pixel_norm.weight"),
        "patch_norm": has("embed.patch_norm.weight"),
        "pool_map": shapes.get("pool.q.weight", (0,))[0],
        "pool_mlp": shapes.get("pool.up.weight", (0,))[0],
        "queries": shapes.get("coca.queries", (0,))[0],
        "query_width": shapes.get("coca.norm_q.weight", (0,))[0],
        "query_out": shapes.get("coca.proj", (0, 0))[1],
        "inert": _inert(shapes),
    }


def _norms(has: Callable[[str], bool]) -> tuple[str, ...]:
    """Return the norms that tell of all whether they have a bias: those of block 0, else the others."""
    inside = f"{_BLOCK}norm1"
    return (inside,) if has(f"{inside}.weight") else ("norm", "pool.norm", "embed.norm")


def _inert(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, dict[str, tuple[int, ...]]]:
    """Return what training alone uses, by the module it is under."""
    out: dict[str, dict[str, tuple[int, ...]]] = {}
    for name, shape in shapes.items():
        head, _, rest = name.partition(".")
        if head in INERT:
            out.setdefault(head, {})[rest] = shape
    return out


def expected_shapes(config: ViTConfig) -> Shapes:
    """Return {canonical name: shape} of every tensor that a network of this configuration has."""
    d, a, m = config.width, config.attention_width, config.mlp_width
    out: Shapes = {}

    def put(present: bool | int, name: str, *shape: int) -> None:
        if present:
            out[name] = shape

    def linear(name: str, rows: int, columns: int, bias: bool, present: bool | int = True) -> None:
        put(present, f"{name}.weight", rows, columns)
        put(present and bias, f"{name}.bias", rows)

    def norm(name: str, width: int, present: bool = True, bias: bool = config.norm_bias) -> None:
        put(present, f"{name}.weight", width)
        put(present and bias, f"{name}.bias", width)

    put(config.cls, "embed.cls", d)
    put(config.dist, "embed.dist", d)
    put(config.registers, "embed.reg", config.registers, d)
    put(config.mask, "embed.mask", d)
    put(config.positions, "embed.pos", config.positions, d)
    put(config.rows, "embed.pos_y", config.rows, d)
    put(config.columns, "embed.pos_x", config.columns, d)
    put(config.pos_cls, "embed.pos_cls", d)
    put(config.pos_dist, "embed.pos_dist", d)
    put(config.pos_reg, "embed.pos_reg", config.registers, d)
    put(config.channels, "embed.patch.weight", d, config.channels, *config.patch)
    put(config.channels and config.patch_bias, "embed.patch.bias", d)
    for kind in ("weight", "bias"):
        put(config.pixel_norm, f"embed.pixel_norm.{kind}", config.channels, *config.patch)
    norm("embed.patch_norm", d, config.patch_norm)
    norm("embed.norm", d, config.embed_norm)

    def branches(block: str) -> None:
        norm(f"{block}.norm1", d, config.block_norms)
        for part, bias in (("q", config.q_bias), ("k", config.k_bias), ("v", config.v_bias)):
            linear(f"{block}.attn.{part}", a, d, bias)
        # The head width is a fact, so a tensor that has it is only looked up when it exists.
        for part in ("q_norm", "k_norm") if config.qk_norm else ():
            norm(f"{block}.attn.{part}", config.head_width, bias=config.qk_norm_bias)
        own = config.relative if config.relative and not config.relative_shared else 0
        put(own, f"{block}.attn.rel_pos", own, config.heads if own else 0)
        put(own, f"{block}.attn.rel_pos_cls", 3, config.heads if own else 0)
        put(config.k_masked, f"{block}.attn.k_masked", a)
        put(config.mixed, f"{block}.attn.rope", 2, *((config.heads, config.head_width // 2) if config.mixed else ()))
        norm(f"{block}.attn.norm", a, config.attn_norm)
        linear(f"{block}.attn.out", d, a, config.out_bias)
        put(config.layer_scale, f"{block}.ls1", d)
        norm(f"{block}.norm2", d, config.block_norms)
        linear(f"{block}.mlp.up", m, d, config.mlp_bias)
        linear(f"{block}.mlp.gate", m, d, config.mlp_bias, config.gated)
        norm(f"{block}.mlp.norm", m, config.mlp_norm)
        linear(f"{block}.mlp.down", d, m, config.mlp_bias)
        put(config.layer_scale, f"{block}.ls2", d)

    for i in range(config.depth):
        for block in (f"blocks.{i}", f"blocks.{i}.twin")[: 1 + config.twin]:
            branches(block)
    put(config.relative_shared, "rel_pos", config.relative, config.heads if config.relative_shared else 0)
    put(config.relative_shared, "rel_pos_cls", 3, config.heads if config.relative_shared else 0)
    put(config.periods, "rope.periods", config.periods)
    norm("trunk_norm", d, config.trunk_norm)
    linear("trunk_dense", d, d, True, config.trunk_dense)
    norm("norm", d, config.norm)
    norm("norm_cls", d, config.norm_cls)
    norm("pool.norm", d, config.pool_norm)
    put(config.pool_map, "pool.probe", d)
    for part in "qkv":
        linear(f"pool.{part}", config.pool_map, d, True, config.pool_map)
    linear("pool.out", d, config.pool_map, True, config.pool_map)
    norm("pool.mlp_norm", d, config.pool_map > 0, bias=True)
    linear("pool.up", config.pool_mlp, d, True, config.pool_map)
    linear("pool.down", d, config.pool_mlp, True, config.pool_map)
    k, v, o = config.queries, config.query_width, config.query_out
    put(k, "coca.queries", k, v)
    for name, width in (("norm_q", v), ("norm_k", d), ("norm", v)):
        norm(f"coca.{name}", width, k > 0, bias=True)
    for name, width in (("q", v), ("k", d), ("v", d), ("out", v)):
        linear(f"coca.{name}", v, width, True, k)
    put(o, "coca.proj", v, o)
    linear("pool.dense", config.pool_dense, d, True, config.pool_dense)
    linear("head", config.classes, config.pool_dense or d, config.head_bias, config.classes)
    linear("head_dist", config.classes_dist, d, config.head_bias, config.classes_dist)
    out |= {f"{head}.{name}": shape for head, shapes in config.inert.items() for name, shape in shapes.items()}
    return out


def compare(expected: Mapping[str, tuple[int, ...]], found: Mapping[str, tuple[int, ...]]) -> list[str]:
    """Return one line per template that differs, layers collapsed; empty when both are the same."""
    lines: dict[str, list[str]] = {}
    for name in dict.fromkeys([*expected, *found]):
        want, have = expected.get(name), found.get(name)
        if want == have:
            continue
        if have is None:
            text = f"missing, expected {list(want or ())}"
        elif want is None:
            text = f"{list(have)} is not expected"
        else:
            text = f"{list(have)}, expected {list(want)}"
        layer = layer_of(name)
        lines.setdefault(f"{template_of(name)}: {text}", []).append("" if layer is None else str(layer))
    return [line + (f" (layers {', '.join(where)})" if where[0] else "") for line, where in lines.items()]
