"""The canonical schema of the plain ViT: the finest-grained names, their axes and their roles.

Dialects only ever join what stands apart here: q, k and v are three tensors, the class row of the position table is
not part of the grid. Roles are what init schemes, weight-decay groups and audits speak of.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from vitconv.errors import LayoutError


@dataclass(frozen=True, slots=True)
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
        ("embed.pos_cls", "d", "position", "position row of the class token"),
        ("embed.pos_dist", "d", "position", "position row of the distillation token"),
        ("embed.pos_reg", "r d", "position", "position rows of the register tokens"),
        ("blocks.{i}.ls1", "d", "layer_scale", "LayerScale of the attention branch"),
        ("blocks.{i}.ls2", "d", "layer_scale", "LayerScale of the MLP branch"),
    ]
    for name, axes, role, title in one:
        yield name, Slot(tuple(axes.split()), role, title)
    yield from pair("embed.patch", "patch", "patch projection", "d c p q", "d")
    yield from norm("embed.norm", "norm before the first block")
    yield from norm("blocks.{i}.norm1", "norm of the attention branch")
    for part, word in (("q", "query"), ("k", "key"), ("v", "value")):
        yield from pair(f"blocks.{{i}}.attn.{part}", f"attn.{part}", f"{word} projection", "a d", "a")
    yield from norm("blocks.{i}.attn.q_norm", "norm of the queries of one head", "e")
    yield from norm("blocks.{i}.attn.k_norm", "norm of the keys of one head", "e")
    yield from norm("blocks.{i}.attn.norm", "norm before the output projection", "a")
    yield from pair("blocks.{i}.attn.out", "attn.out", "output projection", "d a", "d")
    yield from norm("blocks.{i}.norm2", "norm of the MLP branch")
    yield from pair("blocks.{i}.mlp.up", "mlp.up", "MLP, first linear", "m d", "m")
    yield from pair("blocks.{i}.mlp.gate", "mlp.gate", "MLP, gate (the activated half)", "m d", "m")
    yield from norm("blocks.{i}.mlp.norm", "norm inside the MLP", "m")
    yield from pair("blocks.{i}.mlp.down", "mlp.down", "MLP, second linear", "d m", "d")
    yield from norm("trunk_norm", "norm of the trunk, ahead of a second final norm")
    yield from norm("norm", "final norm, before pooling")
    yield from norm("pool.norm", "norm after pooling")
    yield from pair("pool.dense", "pool.dense", "pooler, dense layer", "d2 d", "d2")
    yield from pair("head", "head", "classifier", "o d", "o")
    yield from pair("head_dist", "head", "classifier of the distillation token", "o d", "o")


SCHEMA: dict[str, Slot] = dict(_slots())


def slot(template: str) -> Slot:
    """Return the slot of a canonical name template such as `blocks.{i}.attn.q.weight`.

    Raises:
        LayoutError: no such canonical tensor.
    """
    try:
        return SCHEMA[template]
    except KeyError:
        raise LayoutError(f"{template!r} is not a canonical tensor of the plain family") from None


def template_of(name: str) -> str:
    """Return the template of a concrete canonical name: `blocks.3.ls1` gives `blocks.{i}.ls1`."""
    head, dot, rest = name.partition(".")
    if head != "blocks" or not dot:
        return name
    index, _, tail = rest.partition(".")
    return f"blocks.{{i}}.{tail}" if index.isdigit() else name


def layer_of(name: str) -> int | None:
    """Return the block index in a concrete canonical name, or None for a tensor outside the blocks."""
    parts = name.split(".")
    return int(parts[1]) if len(parts) > 2 and parts[0] == "blocks" and parts[1].isdigit() else None


def role_of(name: str) -> str:
    """Return the role of a concrete canonical name, such as `attn.q.weight`, `norm.bias`, `token`."""
    return slot(template_of(name)).role
