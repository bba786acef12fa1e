"""A position table of as many rows as a square grid has, in a network whose images are not square: which grid is it of?

Nothing in a trained table tells. One of sines and cosines, or of a sum over rows and columns, has channels that repeat
along one side of its grid, and so tells.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from vitconv.io.tensor import Stored
from vitconv.layout.match import Match
from vitconv.layout.network import FLOATS, decode
from vitconv.layout.semantics import Semantics


def doubtful_grid(
    match: Match, facts: Semantics, stored: Mapping[str, Stored], read: Callable[[Stored], Any]
) -> list[str]:
    """Return a warning when the images are not square and the number of positions is a square number.

    The table is read only then.
    """
    n, p = match.sizes.get("n", 0), match.sizes.get("p", 0)
    grid, image = facts.grid, facts.image_size
    if grid is None and image is not None and p:
        grid = (image[0] // p, image[1] // match.sizes.get("q", p))
    side = math.isqrt(n)
    if grid is None or grid[0] == grid[1] or side < 2 or side * side != n or grid[0] * grid[1] != n:
        return []
    said, square = f"{grid[0]}x{grid[1]}", f"{side}x{side}"
    table = _table(match, stored, read)
    if table is not None and _repeats(table, (side, side)) and not _repeats(table, grid):
        told = f"the position table repeats as one of {square} does: it was made for another shape of image"
        return [
            f"warning: the grid is {said}, and {told}; --set grid={square} says so, resize-position brings it to {said}"
        ]
    told = f"{n} positions are {square} too: nothing in the tensors tells which of the two the table is of"
    return [f"warning: the grid is {said}, and {told}"]


def _table(match: Match, stored: Mapping[str, Stored], read: Callable[[Stored], Any]) -> Any:
    import numpy as np

    from vitconv.layout.arith import to_float

    cell = decode(match, {k: t.dtype for k, t in stored.items()}, Semantics()).cells.get("embed.pos")
    if cell is None or cell.dtype not in FLOATS:
        return None
    whole = to_float(read(stored[cell.view.tensor]), cell.dtype, (stored[cell.view.tensor].numel,))
    factors = [f for axis in cell.view.dims for f in axis]
    strides = [s * whole.itemsize for _, s in factors]
    part = np.lib.stride_tricks.as_strided(whole[cell.view.offset :], [k for k, _ in factors], strides, writeable=False)
    return part.reshape(cell.shape)


def _repeats(table: Any, grid: tuple[int, int]) -> bool:
    """Say whether every channel of a table [n d] is the same along the rows of a grid, or along its columns."""
    import numpy as np

    places = table.reshape(*grid, -1)
    slack = 1e-6 * float(np.abs(table).max())
    along = [np.ptp(places, axis=axis).max(axis=0) <= slack for axis in (0, 1)]
    varies = [np.ptp(places, axis=axis).max(axis=0) > slack for axis in (0, 1)]
    # A table of one value tells nothing.
    return bool((along[0] | along[1]).all() and varies[0].any() and varies[1].any())
