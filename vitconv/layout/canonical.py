"""The canonical schema of the plain ViT: the finest-grained names, their axes and their roles.

Dialects only ever join what stands apart here: q, k and v are three tensors, the class row of the position table is
not part of the grid. Roles are what init schemes, weight-decay groups and audits speak of.
"""

from __future__ import annotations

from collections.abc import Iterator

from vitconv.errors import LayoutError
from vitconv.record import dataclass

# Stacks of blocks, each of its own depth, by what stands before `blocks.`; the trunk is the first.
STACKS = ("", "decoder.")


@dataclass(frozen=True)
class Slot:
    """One canonical tensor: its axes (see the axis legend), its role, and what it is in words."""

    axes: tuple[str, ...]
    role: str
    title: str


def _slots() -> Iterator[tuple[str, Slot]]:
    def pair(name: str, role: str, title: str, weight: str, bias: str | None) -> Iterator[tuple[str, Slot]]:
        yield f"{name}.weight", Slot(tuple(weight.split()), f"{role}.weight", title)
        if bias:
            yield f"{name}.bias", Slot(tuple(bias.split()), f"{role}.bias", title)

    def norm(name: str, title: str, axis: str = "d") -> Iterator[tuple[str, Slot]]:
        return pair(name, "norm", title, axis, axis)

    one = [
        ("embed.cls", "d", "token", "class token"),
        ("embed.dist", "d", "token", "distillation token"),
        ("embed.reg", "r d", "token", "register tokens"),
        ("embed.mask", "d", "token", "mask token"),
        ("embed.pos", "n d", "position", "position table of the patch grid"),
        ("embed.pos_y", "rows d", "position", "positions of the grid's rows, where the table is a sum"),
        ("embed.pos_x", "columns d", "position", "positions of the grid's columns, where the table is a sum"),
        ("embed.pos_cls", "d", "position", "position row of the class token"),
        ("embed.pos_dist", "d", "position", "position row of the distillation token"),
        ("embed.pos_reg", "r d", "position", "position rows of the register tokens"),
        ("blocks.{i}.ls1", "d", "layer_scale", "LayerScale of the attention branch"),
        ("blocks.{i}.ls2", "d", "layer_scale", "LayerScale of the MLP branch"),
    ]
    for name, axes, role, title in one:
        yield name, Slot(tuple(axes.split()), role, title)
    yield from pair("embed.patch", "patch", "patch projection", "d c p q", "d")
    yield from norm("embed.pixel_norm", "norm of the pixels of a patch, before the patch projection", "c p q")
    yield from norm("embed.patch_norm", "norm of the patches, after the patch projection")
    yield from norm("embed.norm", "norm before the first block")
    yield from norm("blocks.{i}.norm1", "norm of the attention branch")
    for part, word in (("q", "query"), ("k", "key"), ("v", "value")):
        yield from pair(f"blocks.{{i}}.attn.{part}", f"attn.{part}", f"{word} projection", "a d", "a")
    yield "blocks.{i}.attn.k_masked", Slot(("a",), "dead", "key bias that a mask multiplies by zero")
    yield "blocks.{i}.attn.rel_pos", Slot(("l", "h"), "position", "relative position table of the patch grid")
    yield "blocks.{i}.attn.rel_pos_cls", Slot(("3", "h"), "position", "relative position rows of the class token")
    yield from norm("blocks.{i}.attn.q_norm", "norm of the queries of one head", "e")
    yield from norm("blocks.{i}.attn.k_norm", "norm of the keys of one head", "e")
    yield from norm("blocks.{i}.attn.norm", "norm before the output projection", "a")
    yield from pair("blocks.{i}.attn.out", "attn.out", "output projection", "d a", "d")
    yield from norm("blocks.{i}.norm2", "norm of the MLP branch")
    yield from pair("blocks.{i}.mlp.up", "mlp.up", "MLP, first linear", "m d", "m")
    yield from pair("blocks.{i}.mlp.gate", "mlp.gate", "MLP, gate (the activated half)", "m d", "m")
    yield from norm("blocks.{i}.mlp.norm", "norm inside the MLP", "m")
    yield from pair("blocks.{i}.mlp.down", "mlp.down", "MLP, second linear", "d m", "d")
    yield "rel_pos", Slot(("l", "h"), "position", "relative position table that all blocks share")
    yield "rel_pos_cls", Slot(("3", "h"), "position", "relative position rows of the class token that all blocks share")
    yield "rope.periods", Slot(("f",), "rope", "periods of the rotary positions")
    rope = "frequencies of rotary positions, of both sides for every head"
    yield "blocks.{i}.attn.rope", Slot(("2", "h", "f2"), "rope.mixed", rope)
    yield from norm("trunk_norm", "norm of the trunk, ahead of a second final norm")
    yield from pair(
        "trunk_dense", "pool.dense", "layer with tanh on every token, ahead of the final norm", "d3 d", "d3"
    )
    yield from norm("norm", "final norm, before pooling")
    yield from norm("norm_cls", "final norm of the class token and registers, apart from that of the patches")
    yield from pair("norm_local", "training", "final norm of the class token of small crops in training", "d", "d")
    yield from norm("pool.norm", "norm after pooling")
    yield from pair("pool.dense", "pool.dense", "pooler, dense layer", "d2 d", "d2")
    yield "pool.probe", Slot(("d",), "token", "query of an attention-pooling head")
    for part, word in (("q", "query"), ("k", "key"), ("v", "value")):
        yield from pair(f"pool.{part}", f"attn.{part}", f"{word} projection of an attention-pooling head", "u d", "u")
    yield from pair("pool.out", "attn.out", "output projection of an attention-pooling head", "d u", "d")
    yield from norm("pool.mlp_norm", "norm before the MLP of an attention-pooling head")
    yield from pair("pool.up", "mlp.up", "MLP of an attention-pooling head, first linear", "w d", "w")
    yield from pair("pool.down", "mlp.down", "MLP of an attention-pooling head, second linear", "d w", "d")
    yield from _pooler()
    yield from _twins()
    yield from pair("head", "head", "classifier", "o d", "o")
    yield from pair("head_dist", "head", "classifier of the distillation token", "o d", "o")
    yield from pair("mim", "head", "head of masked image modelling, one class per visual word", "s d", "s")
    yield from _decoder()


def _twins() -> Iterator[tuple[str, Slot]]:
    """Yield the second branches of blocks whose branches stand side by side, two by two."""
    d, a, title = ("d",), ("a",), "of the second, parallel branch"
    for name, axes, role in (
        ("norm1", d, "norm"), ("norm2", d, "norm"), ("attn.q_norm", ("e",), "norm"), ("attn.k_norm", ("e",), "norm"),
        ("attn.q", a + d, "attn.q"), ("attn.k", a + d, "attn.k"), ("attn.v", a + d, "attn.v"),
        ("attn.out", d + a, "attn.out"), ("mlp.up", ("m", "d"), "mlp.up"), ("mlp.down", ("d", "m"), "mlp.down"),
    ):  # fmt: skip
        for kind, shape in (("weight", axes), ("bias", axes[:1])):
            yield f"blocks.{{i}}.twin.{name}.{kind}", Slot(shape, f"{role}.{kind}", f"{role} {title}")
    for name in ("ls1", "ls2"):
        yield f"blocks.{{i}}.twin.{name}", Slot(d, "layer_scale", f"LayerScale {title}")


def _pooler() -> Iterator[tuple[str, Slot]]:
    """Yield CoCa's attentional pooler, of a width of its own (v; v2 is the same width on the other side)."""
    title = "attentional pooler (CoCa)"
    yield "coca.queries", Slot(("k", "v"), "token", f"queries of the {title}")
    for name, axis in (("norm_q", "v"), ("norm_k", "d"), ("norm", "v")):
        for kind in ("weight", "bias"):
            yield f"coca.{name}.{kind}", Slot((axis,), f"norm.{kind}", f"norm of the {title}")
    for name, axes in (("q", ("v2", "v")), ("k", ("v2", "d")), ("v", ("v2", "d")), ("out", ("v", "v2"))):
        yield f"coca.{name}.weight", Slot(axes, f"attn.{name}.weight", title)
        yield f"coca.{name}.bias", Slot(axes[:1], f"attn.{name}.bias", title)
    yield "coca.proj", Slot(("v", "o"), "head.weight", f"projection after the {title}")


def _decoder() -> Iterator[tuple[str, Slot]]:
    """Yield the decoder of masked autoencoders; its blocks are a stack of their own depth."""
    block = "decoder.blocks.{i}"
    linears = [
        ("decoder.embed", "embedding", "y d", "y"),
        *((f"{block}.attn.{x}", f"{word} projection", "g y", "g") for x, word in
          (("q", "query"), ("k", "key"), ("v", "value"))),
        (f"{block}.attn.out", "output projection", "y g", "y"),
        (f"{block}.mlp.up", "MLP, first linear", "x y", "x"),
        (f"{block}.mlp.down", "MLP, second linear", "y x", "y"),
        ("decoder.pred", "prediction of pixels", "z y", "z"),
    ]  # fmt: skip
    for name, axes in (("mask", "y"), ("pos_cls", "y"), ("pos", "n y")):
        role = "token" if name == "mask" else "position"
        yield f"decoder.{name}", Slot(tuple(axes.split()), role, "decoder of masked pretraining")
    for name, title, weight, bias in linears:
        role = "decoder" if name.startswith("decoder.blocks") is False else name.removeprefix(f"{block}.")
        for kind, axes in (("weight", weight), ("bias", bias)):
            yield f"{name}.{kind}", Slot(tuple(axes.split()), f"{role}.{kind}", f"decoder: {title}")
    for name in (f"{block}.norm1", f"{block}.norm2", "decoder.norm"):
        for kind in ("weight", "bias"):
            yield f"{name}.{kind}", Slot(("y",), f"norm.{kind}", "decoder: norm")


SCHEMA: dict[str, Slot] = dict(_slots())


def slot(template: str) -> Slot:
    """Return the slot of a canonical name template such as `blocks.{i}.attn.q.weight`.

    Raises:
        LayoutError: no such canonical tensor.
    """
    if template in SCHEMA:
        return SCHEMA[template]
    from vitconv.layout import canonical_stages

    staged = canonical_stages.SCHEMA.get(canonical_stages.stage_template_of(template))
    if staged is None:
        raise LayoutError(f"{template!r} is not a canonical tensor of the plain family, nor of stages")
    return staged


def template_of(name: str) -> str:
    """Return the template of a concrete canonical name: `blocks.3.ls1` gives `blocks.{i}.ls1`."""
    head, dot, rest = name.partition("blocks.")
    if not dot or head not in STACKS:
        return name
    index, _, tail = rest.partition(".")
    return f"{head}blocks.{{i}}.{tail}" if index.isdigit() else name


def kind_of(name: str) -> str:
    """Return the template of a concrete name of any family: what stands for all layers, and all stages, alike."""
    if not name.startswith("stages."):
        return template_of(name)
    from vitconv.layout.canonical_stages import stage_template_of

    return stage_template_of(name)


def layer_of(name: str) -> int | None:
    """Return the block index in a concrete canonical name, or None for a tensor outside the blocks."""
    head, dot, rest = name.partition("blocks.")
    index, more, _ = rest.partition(".")
    return int(index) if dot and more and head in STACKS and index.isdigit() else None


def stack_of(name: str) -> str:
    """Return the stack of blocks that a name or template belongs to: "" is the trunk, as is all outside the blocks."""
    return "decoder." if name.startswith("decoder.blocks.") else ""


def role_of(name: str) -> str:
    """Return the role of a concrete canonical name, such as `attn.q.weight`, `norm.bias`, `token`."""
    return slot(template_of(name)).role
