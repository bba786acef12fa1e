"""Dialects of stage-wise networks, written once per stage and block and unrolled for one network.

    rule("layers.{s-1}.downsample.reduction.weight: d (* before)", "stages.{s}.merge.{h0w0,...}.weight: d before")

In a rule `{s}` is the canonical stage and `{i}` the block; a key may count from elsewhere (`{s+1}`, `{2s+1}`), and a
rule of the `body` is of every stage but the first, which nothing leads into. `{l}` is the last stage. Axes belong to
a stage: `d` of stage 2 is `d_2`, `before` is the width of the stage before, `last` that of the last one; `c p q o` of
rules without a stage have no suffix. The choice named `blocks` is settled block by block, by the tensor its option
needs. What is unrolled is an ordinary dialect without layers: everything else works on it as on any other.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from functools import cache
from typing import Any

from vitconv.errors import LayoutError, Refused
from vitconv.layout.canonical_stages import depths_of
from vitconv.layout.dialect import Dialect
from vitconv.layout.rule import Alias, Choice, Const, Entry, Option, Part, Rule
from vitconv.layout.shape import Axes, Axis
from vitconv.layout.windows import Block, Window, maps_of, per_stage, shifts, windows_of
from vitconv.record import dataclass

PER_BLOCK = "blocks"
_EXPR = re.compile(r"\{(\d*)s([+-]\d+)?\}")
_SHARED = frozenset("cpqo*")
# Sizes that blocks of one stage may differ in: tokens of a window, width of a branch, kernels.
_OF_BLOCK = frozenset("ugxyvwrzjl")
_MOST_STAGES = 16
# The stages that a rule speaks of, by its filter and the last stage: `body` is what something leads into.
_STAGES: Mapping[str, Callable[[int], Container[int]]] = {
    "all": lambda last: range(last + 1),
    "body": lambda last: range(1, last + 1),
    "early": lambda last: range(last),
    "last": lambda last: (last,),
    "first": lambda _: (0,),
}


@dataclass(frozen=True)
class Net:
    """What decides how a dialect is unrolled.

    Attributes:
        depths: blocks per stage.
        kinds: {(stage, block): name of the option of `blocks`}.
        windows: {(stage, block): (height, width) of the window}, where known.
        maps: {stage: (rows, columns)} of the feature map, where known.
        pretrained: {stage: side of the window in pre-training, 0 for none}, where known.
        shapes: {key: shape} of the file that is read; None when writing.
    """

    depths: tuple[int, ...]
    kinds: Mapping[Block, str]
    windows: Mapping[Block, Window]
    maps: Mapping[int, tuple[int, int]]
    pretrained: Mapping[int, int]
    shapes: Mapping[str, tuple[int, ...]] | None = None


def unrolled_for_file(dialect: Dialect, shapes: Mapping[str, tuple[int, ...]]) -> Dialect:
    """Return the dialect for the stages and blocks that the keys of a file name; one block when they name none."""
    return _unrolled(dialect, shapes) if speaks(dialect, shapes) else _of_one_block(dialect)


@cache
def _of_one_block(dialect: Dialect) -> Dialect:
    # Every file of another layout is held against it, where the closest is looked for.
    return _unrolled(dialect, {})


def _unrolled(dialect: Dialect, shapes: Mapping[str, tuple[int, ...]]) -> Dialect:
    depths = _depths(dialect, shapes)
    kinds = {}
    for choice in (c for c in dialect.choices if c.name == PER_BLOCK):
        probes = [(o.name, _key_of(o.entries, o.needs[0])) for o in choice.options if o.needs]
        rest = next((o.name for o in choice.options if not o.needs), "")
        for s, i in _blocks(depths):
            kinds[s, i] = next((name for name, key in probes if _put(key, s, i, len(depths)) in shapes), rest)
    return _unroll(dialect, Net(depths, kinds, {}, {}, {}, shapes), {})


def unrolled_for_network(
    dialect: Dialect,
    names: Mapping[str, tuple[int, ...]],
    facts: Mapping[str, Any],
    wanted: Mapping[str, str] | None = None,
) -> Dialect:
    """Return the dialect for the canonical tensors `names` ({name: shape}); buffers that it holds are sized.

    Options whose buffers depend on a fact that nothing states are left out, where they are not the `wanted` ones.

    Raises:
        Refused: the dialect, or a wanted option, holds buffers that depend on a fact nothing states.
    """
    depths = depths_of(dict(names))
    if not depths or not all(depths):
        raise Refused(f"{dialect.name} is written from a stage-wise network; this has {list(depths)} blocks per stage")
    kinds = {}
    for choice in (c for c in dialect.choices if c.name == PER_BLOCK):
        rest = next((o.name for o in choice.options if not o.needs), "")
        for s, i in _blocks(depths):
            probes = [(o.name, _put(o.needs[0], s, i, len(depths))) for o in choice.options if o.needs]
            kinds[s, i] = next((name for name, part in probes if part in names), rest)
    net = Net(depths, kinds, windows_of(names, facts), maps_of(names, facts), _pretrained(depths, facts))
    return _unroll(dialect, net, wanted or {})


def _pretrained(depths: tuple[int, ...], facts: Mapping[str, Any]) -> dict[int, int]:
    return per_stage(facts.get("pretrained_window"), len(depths))


def _blocks(depths: tuple[int, ...]) -> Iterator[Block]:
    return ((s, i) for s, depth in enumerate(depths) for i in range(depth))


def speaks(dialect: Dialect, keys: Iterable[str]) -> bool:
    """Say whether any key may be of a block of this dialect: a quick first look."""
    found, tail, _, _ = _probe(dialect)
    return any(key.endswith(tail) and found.fullmatch(key) for key in keys)


@cache
def _probe(dialect: Dialect) -> tuple[re.Pattern[str], str, int, int]:
    """Return the pattern of a tensor that every block has, how its key ends, and how the stage is counted."""
    probe = next(e for e in _flat(dialect.entries) if isinstance(e, Rule) and _staged(e) and "{i}" in e.key)
    m = _EXPR.search(probe.key)
    assert m is not None
    pattern = re.escape(probe.key).replace(re.escape(m[0]), r"(\d{1,3})").replace(re.escape("{i}"), r"(\d{1,5})")
    found = re.compile(re.sub(r"\\\{\w+\\\}", r"[\\w.]*?", pattern))
    return found, probe.key.rpartition("}")[2], int(m[1] or 1), int(m[2] or 0)


def _depths(dialect: Dialect, keys: Iterable[str]) -> tuple[int, ...]:
    found, tail, step, shift = _probe(dialect)
    deep: dict[int, int] = {}
    count = 0
    for key in keys:
        hit = found.fullmatch(key) if key.endswith(tail) else None
        if hit:
            s, rest = divmod(int(hit[1]) - shift, step)
            if rest == 0 and 0 <= s < _MOST_STAGES:
                count += 1
                deep[s] = max(deep.get(s, 0), int(hit[2]) + 1)
    # A wild block number is a hole in the file, or an attack on memory: it stays unknown.
    most = 2 * count + 1
    return tuple(min(deep.get(s, 1), most) for s in range(max(deep, default=0) + 1))


def _flat(entries: Iterable[Entry]) -> Iterator[Entry]:
    for e in entries:
        if isinstance(e, Choice):
            for o in e.options:
                yield from _flat(o.entries)
        else:
            yield e


def _key_of(entries: Iterable[Entry], part: str) -> str:
    return next(e.key for e in entries if isinstance(e, Rule) and any(p.key == part for p in e.parts))


def _staged(e: Rule | Const | Alias) -> bool:
    return bool(_EXPR.search(e.key)) or (isinstance(e, Rule) and any("{s}" in p.key for p in e.parts))


def _unroll(dialect: Dialect, net: Net, wanted: Mapping[str, str]) -> Dialect:
    kinds = {o.name: o.entries for c in dialect.choices if c.name == PER_BLOCK for o in c.options}
    entries: list[Entry] = []
    for e in dialect.entries:
        if not isinstance(e, Choice):
            entries += _each(e, net, None)
        elif e.name == PER_BLOCK:
            for block, kind in net.kinds.items():
                for inner in kinds[kind]:
                    entries += _each(inner, net, block)
        else:
            entries.append(dataclasses.replace(e, options=tuple(_options(e, net, wanted.get(e.name)))))
    # What the first kind of block present implies holds for the network: one focused block makes it focused.
    taken = [o for c in dialect.choices if c.name == PER_BLOCK for o in c.options if o.name in net.kinds.values()]
    implies = {**dialect.implies, **(taken[0].implies if taken else {})}
    equal = tuple((f"{a}_{s}", f"{b}_{s}") for a, b in dialect.equal for s in range(len(net.depths)))
    return dataclasses.replace(dialect, entries=tuple(entries), equal=equal, implies=implies, staged=False)


def _options(choice: Choice, net: Net, wanted: str | None) -> Iterator[Option]:
    for at, o in enumerate(choice.options):
        try:
            entries = tuple(x for inner in o.entries for x in _each(inner, net, None))
        except Refused:
            # The first one is what is written when nothing else is said.
            if wanted == o.name or at == 0:
                raise
            continue
        yield dataclasses.replace(o, entries=entries)


def _each(e: Entry, net: Net, only: Block | None) -> Iterator[Entry]:
    """Yield an entry once per stage, or per block, that it speaks of."""
    if isinstance(e, Choice) or not isinstance(e, (Rule, Const, Alias)):
        raise LayoutError("a dialect of stages has no choice inside a choice, and no ties")
    last = len(net.depths) - 1
    if not _staged(e):
        if only is None:
            yield from _at(e, net, None, 0)
        return
    which = e.layers if isinstance(e, Rule) else "all"
    for s in range(last + 1):
        if s not in _STAGES[which](last):
            continue
        for i in range(net.depths[s]) if "{i}" in e.key else (0,):
            if only in (None, (s, i)):
                yield from _at(e, net, s, i)


def _at(e: Rule | Const | Alias, net: Net, s: int | None, i: int) -> Iterator[Entry]:
    stages = len(net.depths)
    key = _put(e.key, s or 0, i, stages)
    if not key:
        return
    if isinstance(e, Alias):
        yield Alias(key, _put(e.of, s or 0, i, stages))
    elif isinstance(e, Const):
        yield from _const(e, key, net, s or 0, i)
    else:
        parts = tuple(Part(_put(p.key, s or 0, i, stages), _axes(p.axes, s, i, stages)) for p in e.parts)
        fill = tuple((_put(name, s or 0, i, stages), value) for name, value in e.fill)
        # All tensors of one optional rule are there, or none; a group may say {s} and {i}: then of a stage, of a block.
        group = e.group.replace("{s}", str(s)).replace("{i}", str(i)) or (e.key if e.optional else "")
        yield Rule(key, _axes(e.axes, s, i, stages), parts, e.optional, "all", fill, group)


def _put(template: str, s: int, i: int, stages: int) -> str:
    """Return the concrete key, or "" when it would lie before the first stage."""
    numbers = [int(m[1] or 1) * s + int(m[2] or 0) for m in _EXPR.finditer(template)]
    if any(n < 0 for n in numbers):
        return ""
    text = _EXPR.sub(lambda m: str(int(m[1] or 1) * s + int(m[2] or 0)), template)
    return text.replace("{i}", str(i)).replace("{l}", str(stages - 1))


def _axes(axes: Axes, s: int | None, i: int, stages: int) -> Axes:
    return tuple(Axis(tuple(_atom(a, s, i, stages) for a in axis.atoms), axis.joined) for axis in axes)


def _atom(a: str, s: int | None, i: int, stages: int) -> str:
    if a.isdigit() or a == "*" or (s is None and a in _SHARED):
        return a
    if a in ("before", "last"):
        return f"d_{stages - 1 if a == 'last' else (s or 0) - 1}"
    return f"{a}_{s or 0}_{i}" if a in _OF_BLOCK else f"{a}_{s or 0}"


def _const(e: Const, key: str, net: Net, s: int, i: int) -> Iterator[Const]:
    """Yield the buffer of one block, its sizes as numbers."""
    if net.shapes is not None:
        found = net.shapes.get(key)
        axes = e.axes if found is None or len(found) != len(e.axes) else tuple(Axis((str(n),)) for n in found)
        yield Const(key, axes, e.value, e.dtype, optional=e.optional)
        return
    size = _size(e, net, s, i) if e.written else None
    if size is not None:
        high, wide = net.windows.get((s, i), (0, 0))
        told = {"coords": f":{net.pretrained.get(s)}"}.get(str(e.value), f":{high}x{wide}" if high != wide else "")
        if e.value == "shift-mask":
            told = f":{net.maps[s][0]}x{net.maps[s][1]}{told}"
        value = f"{e.value}{told}"
        yield Const(key, tuple(Axis((str(n),)) for n in size), value, e.dtype, e.optional, e.written)


def _size(e: Const, net: Net, s: int, i: int) -> tuple[int, ...] | None:
    """Return the shape of a buffer that is to be written, or None when the block has none."""
    w = net.windows.get((s, i))
    if e.value == "shift-mask":
        grid = net.maps.get(s)
        if grid is None and i % 2:
            raise Refused(
                "masks of shifted windows depend on the size of the images, which is not known; say it with --set"
                " image_size=224"
            )
        if w is None or grid is None or not shifts(w, i, grid) or grid[0] % w[0] or grid[1] % w[1]:
            return None
        places = w[0] * w[1]
        return grid[0] * grid[1] // places, places, places
    if w is None:
        raise Refused(
            "the size of the windows is not known, and buffers depend on it; say it with --set window=7 (and"
            " --set window_width=... if they are no squares)"
        )
    if e.value == "coords":
        if s not in net.pretrained:
            raise Refused(
                "the table of relative coordinates depends on the window of the pre-training, which is not in the"
                " weights; say it with --set pretrained_window=0 (no other window), or one number per stage"
            )
        return 1, 2 * w[0] - 1, 2 * w[1] - 1, 2
    places = w[0] * w[1]
    return (places**2,) if e.value == "relative-index-flat" else (places, places)


def stages_of(names: Container[str] | Mapping[str, Any]) -> bool:
    """Say whether canonical names are those of a stage-wise network."""
    return any(str(n).startswith("stages.") for n in names)  # type: ignore[union-attr]
