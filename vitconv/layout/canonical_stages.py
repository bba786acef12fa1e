"""The canonical schema of stage-wise networks (Swin, PVT, CSwin and their kin): names, axes and roles.

`{s}` is the stage, `{i}` the block within it. Sizes belong to a stage: `d` is its width, `before` the width of the
stage before it, `last` the width of the last one. The four neighbours that a patch merging joins stand apart, each
named by its row and column in the 2x2 cell, so that the order in which a codebase joins them is a permutation.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from vitconv.layout.canonical import Slot

FAMILY = "stages"
# Rows first: h1w0 is the lower left of the 2x2 cell.
NEIGHBOURS = ("h0w0", "h1w0", "h0w1", "h1w1")

_STAGE = re.compile(r"^stages\.(\d+)(?=\.)(?:\.blocks\.(\d+)(?=\.))?")


def _slots() -> Iterator[tuple[str, Slot]]:
    def one(name: str, axes: str, role: str, title: str) -> tuple[str, Slot]:
        return name, Slot(tuple(axes.split()), role, title)

    def pair(name: str, role: str, title: str, weight: str, bias: str) -> Iterator[tuple[str, Slot]]:
        yield one(f"{name}.weight", weight, f"{role}.weight", title)
        yield one(f"{name}.bias", bias, f"{role}.bias", title)

    def norm(name: str, title: str, axis: str = "d") -> Iterator[tuple[str, Slot]]:
        return pair(name, "norm", title, axis, axis)

    yield from pair("embed.patch", "patch", "patch projection", "d c p q", "d")
    yield from norm("embed.norm", "norm after the patch projection")
    yield one("embed.pos", "n d", "position", "position table of the first stage")
    yield one("embed.mask", "d", "token", "mask token")
    s, b = "stages.{s}.", "stages.{s}.blocks.{i}."
    for at in NEIGHBOURS:
        where = f"row {at[1]}, column {at[3]} of the 2x2 cell"
        yield one(f"{s}merge.{at}.weight", "d before", "merge.weight", f"patch merging, {where}")
        yield from norm(f"{s}merge.norm.{at}", f"norm before the merging projection, {where}", "before")
    yield from norm(f"{s}merge.out_norm", "norm after the merging projection")
    yield from pair(f"{s}patch", "patch", "convolution into the stage", "d before p q", "d")
    yield from norm(f"{s}patch_norm", "norm after the convolution into the stage")
    yield one(f"{s}pos", "n d", "position", "position table of the stage")
    yield one(f"{s}cls", "d", "token", "class token")
    yield one(f"{s}pos_cls", "d", "position", "position row of the class token")
    yield from norm(f"{b}norm1", "norm of the attention branch")
    for part, word in (("q", "query"), ("k", "key"), ("v", "value")):
        yield from pair(f"{b}attn.{part}", f"attn.{part}", f"{word} projection", "a d", "a")
    yield from pair(f"{b}attn.out", "attn.out", "output projection", "d a", "d")
    yield one(f"{b}attn.table", "t h", "position", "table of relative positions, row-major over the offsets")
    yield one(f"{b}attn.logit_scale", "h", "logit_scale", "logarithm of the cosine attention's scale")
    yield from pair(f"{b}attn.cpb.up", "cpb", "MLP of the relative positions, first linear", "k 2", "k")
    yield one(f"{b}attn.cpb.down.weight", "h k", "cpb.weight", "MLP of the relative positions, second linear")
    yield from pair(f"{b}attn.sr", "attn.sr", "spatial reduction of keys and values", "f d v w", "f")
    yield from norm(f"{b}attn.sr_norm", "norm after the spatial reduction", "f")
    # Focused linear attention; b0 and b1 are the two branches of a CSwin block.
    for at, word in (("", ""), ("b0.", ", first branch"), ("b1.", ", second branch")):
        wide = "a" if not at else "g"
        yield one(f"{b}attn.{at}scale", wide, "focused.scale", f"scale of the features, before softplus{word}")
        yield one(f"{b}attn.{at}pos", f"u {wide}", "position", f"position table added to the keys{word}")
        yield from pair(f"{b}attn.{at}dwc", "dwc", f"depthwise convolution of the values{word}", "e x y", "e")
        if at:
            yield from pair(f"{b}attn.{at}lepe", "dwc", f"positional convolution of the values{word}", "g j l", "g")
    yield from norm(f"{b}norm2", "norm of the MLP branch")
    yield from pair(f"{b}mlp.up", "mlp.up", "MLP, first linear", "m d", "m")
    yield from pair(f"{b}mlp.dwc", "dwc", "depthwise convolution inside the MLP", "m r z", "m")
    yield from pair(f"{b}mlp.down", "mlp.down", "MLP, second linear", "d m", "d")
    yield from norm(f"{s}norm", "norm at the end of the stage")
    yield from norm("norm", "final norm, before pooling", "last")
    yield from pair("head", "head", "classifier", "o last", "o")


SCHEMA: dict[str, Slot] = dict(_slots())


def stage_template_of(name: str) -> str:
    """Return the template of a concrete name, with `{s}` and `{i}` in place of its stage and block."""
    m = _STAGE.match(name)
    if m is None:
        return name
    return ("stages.{s}" if m[2] is None else "stages.{s}.blocks.{i}") + name[m.end() :]


def place_of(name: str) -> tuple[int, int] | None:
    """Return (stage, block) of a concrete canonical name, or None for a tensor outside the blocks."""
    m = _STAGE.match(name)
    return (int(m[1]), int(m[2])) if m and m[2] is not None else None


def depths_of(names: Iterator[str] | set[str] | list[str] | dict[str, tuple[int, ...]]) -> tuple[int, ...]:
    """Return the number of blocks of every stage that canonical names speak of."""
    deep: dict[int, int] = {}
    for name in names:
        place = place_of(name)
        if place is not None:
            deep[place[0]] = max(deep.get(place[0], 0), place[1] + 1)
    return tuple(deep.get(s, 0) for s in range(max(deep, default=-1) + 1))
