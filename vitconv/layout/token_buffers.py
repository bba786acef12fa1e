"""Buffers of networks with a class token: indexes of relative positions, and the waves of rotary positions.

    class-index          [1+n 1+n]: row of the table of relative positions for every pair of tokens; the last three rows
                         are class to patch, patch to class, class to class
    rope-cos, rope-sin   [n e], or [rows columns e]: waves of base 10000 over rows, then columns, each frequency twice

To be written they have sides, `class-index:14x14`, `rope-cos:14x14:16:float32`: the grid, the number of places that its
sides are numbered to, and the precision of frequencies and places.
Source: microsoft/unilm beit/modeling_finetune.py, 768a3c8; baaivision/EVA EVA-02/asuka/rope.py, 5623d08.
"""

from __future__ import annotations

from typing import Any

from vitconv.errors import LayoutError

BASE = 10000.0


def token_buffer(value: str, shape: tuple[int, ...]) -> Any:
    """Return a buffer whose sides are told: int64 for an index, float64 else.

    Raises:
        LayoutError: the shape is another one.
    """
    import numpy as np

    name, grid, *more = value.split(":")
    rows, columns = (int(n) for n in grid.split("x"))
    if name == "class-index":
        made = class_index(rows, columns)
    else:
        reference, precision = more
        turns = angles((rows, columns), shape[-1], int(reference), precision)
        made = (np.cos if name == "rope-cos" else np.sin)(turns)
        # The author's code takes cosines of float32, which are float32.
        made = made.astype(np.float32).astype(np.float64) if precision == "float32" else made
    if made.shape != shape:
        raise LayoutError(f"{value} has shape {list(made.shape)}, not {list(shape)}")
    return made


def fits(value: str, found: Any, slack: float) -> bool:
    """Say whether an array is this buffer, for the grid and the reference size that its own values speak of."""
    import numpy as np

    value = value.partition(":")[0]
    if value == "class-index":
        grids = grids_of(found)
        return any(np.array_equal(found, class_index(*grid)) for grid in grids)
    return wave_of(value, found, slack) is not None


def wave_of(value: str, found: Any, slack: float) -> tuple[tuple[int, int], int] | None:
    """Return the grid of waves and the number of places that its sides are numbered to, or None for other arrays.

    Args:
        value: `rope-cos` or `rope-sin`.
        found: [n e] or [rows columns e].
        slack: largest difference.
    """
    import numpy as np

    if found.ndim not in (2, 3) or found.shape[-1] % 4 or not found.size:
        return None
    wave, slack = (np.cos if value == "rope-cos" else np.sin), max(slack, 1e-5)
    width, flat = found.shape[-1], found.reshape(-1, found.shape[-1])
    half = width // 2
    # The first half of a row turns with the rows of the grid: a row of the grid ends where it changes.
    moved = np.flatnonzero((np.abs(flat[:, :half] - flat[0, :half]) > slack).any(1))
    columns = int(moved[0]) if moved.size else len(flat)
    rows = len(flat) // columns
    grid = (int(found.shape[0]), int(found.shape[1])) if found.ndim == 3 else (rows, columns)
    if grid[0] * grid[1] != len(flat):
        return None
    # One place away from the origin tells the sides that come into question.
    side, at, part = (grid[0], grid[1], slice(0, half)) if grid[0] > 1 else (grid[1], 1, slice(half, width))
    steps = np.repeat(BASE ** -(np.arange(0, half, 2) / half), 2)
    sides = np.arange(1, max(64, 4 * max(grid)) + 1)
    near = wave(sides[:, None] / side * steps) if len(flat) > 1 else np.broadcast_to(flat[0, part], (len(sides), half))
    close = (np.abs(near - flat[min(at, len(flat) - 1), part]) <= slack).all(1)
    for reference in sides[close]:
        if np.allclose(flat, wave(angles(grid, width, reference)), rtol=0, atol=slack):
            return grid, int(reference)
    return None


def grids_of(index: Any) -> list[tuple[int, int]]:
    """Return the grids whose table has as many rows as the index speaks of, and whose places it has."""
    if index.ndim != 2 or index.shape[0] != index.shape[1] or not index.size:
        return []
    n, rows = len(index) - 1, int(index.max()) - 2
    return [(g, n // g) for g in range(1, n + 1) if n % g == 0 and (2 * g - 1) * (2 * (n // g) - 1) == rows]


def class_index(rows: int, columns: int) -> Any:
    """Return the index of a grid of rows x columns places behind a class token: int64 [1+n 1+n]."""
    import numpy as np

    at = np.stack(np.meshgrid(np.arange(rows), np.arange(columns), indexing="ij")).reshape(2, -1)
    down, right = (x[:, None] - x[None, :] for x in at)
    out = np.empty((rows * columns + 1,) * 2, np.int64)
    last = (2 * rows - 1) * (2 * columns - 1)
    out[1:, 1:] = (down + rows - 1) * (2 * columns - 1) + right + columns - 1
    out[0], out[:, 0], out[0, 0] = last, last + 1, last + 2
    return out


def angles(grid: tuple[int, int], width: int, reference: float, precision: str = "float64") -> Any:
    """Return the angles of a grid whose places are numbered as in one of `reference` places: float64 [n e].

    In `float32` frequencies, places and their products are rounded, in `float32-frequencies` the first alone.
    """
    import numpy as np

    half = width // 2
    steps: Any = BASE ** -(np.arange(0, half, 2) / half)
    kind: Any = np.dtype(np.float32 if precision == "float32" else np.float64)
    if precision != "float64":
        powers = (np.arange(0, half, 2, dtype=np.float32) / np.float32(half)).astype(np.float64)
        # Rounded from float64, as torch has them; numpy's own powers of float32 are off in the last place.
        steps = np.float32(1) / (BASE**powers).astype(np.float32)
    places = [np.arange(n).astype(kind) / kind.type(n) * kind.type(reference) for n in grid]
    waves = [np.repeat(np.outer(at, steps), 2, axis=1).astype(np.float64) for at in places]
    down, right = np.broadcast_arrays(waves[0][:, None, :], waves[1][None, :, :])
    return np.concatenate([down, right], -1).reshape(-1, width)
