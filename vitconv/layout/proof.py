"""The proof of a plan: no element is lost or used twice, and each one goes back where it came from."""

from __future__ import annotations

import math
from typing import Any

from vitconv.errors import LayoutError
from vitconv.layout.match import collapse
from vitconv.layout.plan import Plan, Target
from vitconv.layout.recipe import View, Views, part_shape, tiles
from vitconv.layout.shape import shape_of
from vitconv.layout.unify import Bound


def prove(p: Plan) -> int:
    """Check the plan and return the number of elements accounted for.

    1. The rules of the source use every element of every tensor of the file exactly once, and every canonical tensor
       that was not computed lies where its rule puts it.
    2. The pieces of every target fill every element of it exactly once.
    3. Every canonical tensor of the source is written, left over and said so, or taken away by an edit that says so.
    4. The first, the last and sampled elements of every canonical tensor go back where they came from by the target's
       own rule.

    Raises:
        LayoutError: the plan is wrong; nothing may be written.
    """
    count = _prove_source(p)
    # The layers are alike, so each kind of target is looked at once.
    full: set[tuple[Any, ...]] = set()
    for t in p.targets:
        boxes = tuple((x.dst, tuple((n, d) for n, _, d in x.dims)) for x in t.pieces)
        if t.const is None and (t.shape, boxes) not in full and not tiles(boxes, math.prod(t.shape)):
            raise LayoutError(f"the plan does not fill {t.key} exactly once")
        full.add((t.shape, boxes))
    written = {n for t in p.targets for n in t.parts}
    said = written | {a for a, _ in p.equal} | {c.name for c in p.residue}
    said |= {n for applied in p.network.log for n in applied.removed} | {c.name for c, _ in p.derived}
    whole = 0 not in p.source.sizes.values()
    forgotten = (
        {n for b in p.source.bound for j, n in enumerate(b.parts) if whole or _has_any(b, j, p)} | set(p.network.cells)
    ) - said
    if forgotten:
        raise LayoutError(f"the plan forgets {', '.join(collapse(sorted(forgotten)))}")
    _sample(p)
    return count


def _has_any(b: Bound, j: int, p: Plan) -> bool:
    return 0 not in part_shape(b, j, p.source.sizes)


def _prove_source(p: Plan) -> int:
    total = 0
    homes: dict[str, View] = {}
    places = Views(p.source.sizes)
    numels: dict[tuple[int, int], int] = {}
    for b in p.source.bound:
        views = [places.of(b, j) for j in range(len(b.parts))]
        kind = (id(b.rule), len(b.parts))
        if kind not in numels:
            numels[kind] = math.prod(shape_of(b.rule.axes, b.env(p.source.sizes)))
            if not tiles([(v.offset, tuple(f for axis in v.dims for f in axis)) for v in views], numels[kind]):
                raise LayoutError(f"the rule of {b.key} does not use each of its elements exactly once")
        homes |= zip(b.parts, views, strict=True)
        total += numels[kind]
    for t in p.source.variant.ties:
        for i in range(p.source.depth):
            of = homes.get(t.of.replace("{i}", str(i)))
            homes |= {part.replace("{i}", str(i)): of for part in t.parts} if of else {}
    for name, cell in p.network.cells.items():
        if not cell.view.tensor.startswith("=") and homes.get(name, cell.view) != cell.view:
            raise LayoutError(f"{name} is not taken from where it lies in {homes[name].tensor}")
    return total


def _sample(p: Plan) -> None:
    bounds = {b.key: b for b in p.target.bound}
    places = Views(p.sizes)
    for t in p.targets:
        b = bounds.get(t.key)
        if b is None:
            continue
        for j, name in enumerate(b.parts):
            cell, home = p.network.cells[name], places.of(b, j)
            if not cell.numel:
                continue
            # Both ends, and two inner places that differ in every axis.
            ends = [[0] * len(cell.shape), [n - 1 for n in cell.shape]]
            inner = [[n * ((k + 2 * j) % 17) // 17 for j, n in enumerate(cell.shape)] for k in (3, 7)]
            for index in ends + inner:
                src, dst = _element(cell.view, index), _element(home, index)
                if _source_of(t, dst) != (cell.view.tensor, src):
                    raise LayoutError(f"element {index} of {name} does not come back from {t.key}")


def _element(v: View, index: list[int]) -> int:
    at = v.offset
    for axis, k in zip(v.dims, index, strict=True):
        for n, stride in reversed(axis):
            at += k % n * stride
            k //= n
    return at


def _source_of(t: Target, element: int) -> tuple[str, int] | None:
    for x in t.pieces:
        rest, src = element - x.dst, x.src
        for n, s, d in x.dims:
            k = min(rest // d, n - 1) if rest >= 0 else -1
            if k < 0:
                break
            rest -= k * d
            src += k * s
        else:
            if rest == 0:
                return x.source, src
    return None
