"""The buffers of a network that is to be written: what its sizes and facts say of each, or what is lacking to say it.

A layout's constant names a buffer alone (`class-index`); that of a network has sides (`class-index:14x14`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import isqrt, prod

from vitconv.errors import Refused
from vitconv.layout.rule import Const
from vitconv.layout.semantics import Semantics
from vitconv.layout.shape import shape_of

_WAVES = ("rope-cos", "rope-sin")


def settled(
    consts: Mapping[str, Const], sizes: Mapping[str, int], facts: Semantics, dtype: str
) -> Iterator[tuple[str, Const, tuple[int, ...]]]:
    """Yield (key, constant, shape) of every constant to write; those that this network has not are left out.

    Args:
        consts: {key: constant of the layout}.
        sizes: axis sizes of the target.
        facts: of the network.
        dtype: the float dtype that is written.

    Raises:
        Refused: a buffer depends on what is not known.
    """
    for key, const in consts.items():
        if const.value == "class-index":
            grid = _table_grid(key, sizes, facts)
            yield key, replace(const, value=f"class-index:{_by(grid)}"), (1 + prod(grid),) * 2
        elif const.value in _WAVES:
            # Networks with a table of positions and no turns have none.
            if facts.position == "rope":
                value, shape = _wave(key, str(const.value), sizes, facts, dtype)
                yield key, replace(const, value=value), shape
        else:
            yield key, const, shape_of(const.axes, {**sizes, "*": 3})


def _wave(key: str, value: str, sizes: Mapping[str, int], facts: Semantics, dtype: str) -> tuple[str, tuple[int, ...]]:
    grid, reference, heads = _grid(sizes, facts), facts.rope_reference, facts.heads
    told = {"grid=HxW": grid, "rope_reference=N": reference, "heads=N": heads}
    lacking = " ".join(f"--set {how}" for how, known in told.items() if known is None)
    if grid is None or reference is None or heads is None:
        raise Refused(
            f"{key} is written anew and depends on the grid, the size that places are numbered to (rope_reference) and"
            f" the head width; say {lacking}"
        )
    if reference[0] != reference[1]:
        raise Refused(f"{key} numbers both sides alike, and rope_reference is {_by(reference)}")
    # Its author's code takes frequencies and places in float32, in a network of float32 or less.
    precision = facts.rope_precision or ("float64" if dtype == "F64" else "float32")
    width = sizes["a"] // heads
    return f"{value}:{_by(grid)}:{reference[0]}:{precision}", (prod(grid), width)


def _grid(sizes: Mapping[str, int], facts: Semantics) -> tuple[int, int] | None:
    """Return the grid of patches: as told, or of images as told, or the square of a position table."""
    if facts.grid is not None:
        return facts.grid
    if facts.image_size is not None and "p" in sizes:
        return facts.image_size[0] // sizes["p"], facts.image_size[1] // sizes.get("q", sizes["p"])
    side = isqrt(sizes.get("n", 0))
    return (side, side) if side and side * side == sizes["n"] else None


def _table_grid(key: str, sizes: Mapping[str, int], facts: Semantics) -> tuple[int, int]:
    """Return the grid whose table of offsets has the rows that the network's has: as told, or else a square."""
    rows = sizes["l"]
    told = _grid(sizes, facts)
    side = (isqrt(rows) + 1) // 2
    for grid in (told, (side, side)):
        if grid is not None and (2 * grid[0] - 1) * (2 * grid[1] - 1) == rows:
            return grid
    what = "no square grid's" if told is None else f"not that of a grid of {_by(told)}"
    raise Refused(
        f"{key} is written anew and depends on the grid; a table of {rows} offsets is {what}; say --set grid=HxW"
    )


def _by(pair: tuple[int, int]) -> str:
    return f"{pair[0]}x{pair[1]}"
