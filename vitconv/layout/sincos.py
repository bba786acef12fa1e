"""Fixed tables of sines and cosines, which some codes store and others make anew at every run.

Source: facebookresearch/mae, util/pos_embed.py, efb2a80; facebookresearch/moco-v3, vits.py, c349e6e; google-research/
big_vision, big_vision/models/vit.py, 0127fb6, as lucidrains/vit-pytorch, vit_pytorch/simple_vit.py has it.
"""

from __future__ import annotations

from typing import Any

from vitconv.errors import UsageError

# {name: what tells it from the others}
KINDS = {
    "mae": "frequencies 10000^(-k/n), columns first",
    "moco-v3": "frequencies 10000^(-k/n), rows first",
    "big-vision": "frequencies 10000^(-k/(n-1)), columns first",
}


def sincos(kind: str, grid: tuple[int, int], width: int) -> Any:
    """Return the table of a grid of (rows, columns) patches: [n d], float64; n sines, n cosines for each side.

    Raises:
        UsageError: the width is no multiple of 4.
    """
    import numpy as np

    if width % 4 or width < 8:
        raise UsageError(f"a table of sines and cosines needs a width of 8, 12, 16 and so on, not {width}")
    quarter = width // 4
    omega = 10000.0 ** -(np.arange(quarter, dtype=np.float64) / (quarter - (kind == "big-vision")))
    row, column = (x.reshape(-1, 1) * omega for x in np.meshgrid(*map(np.arange, grid), indexing="ij"))
    first, second = (row, column) if kind == "moco-v3" else (column, row)
    return np.concatenate([np.sin(first), np.cos(first), np.sin(second), np.cos(second)], axis=1)


def grid_of(kind: str, table: Any, slack: float = 1e-5) -> tuple[int, int] | None:
    """Return the grid that a table [n d] was made for, or None when it is not of this kind."""
    import numpy as np

    n, width = table.shape
    if width % 4 or width < 8:
        return None
    for rows in range(1, n + 1):
        if n % rows == 0 and np.allclose(table, sincos(kind, (rows, n // rows), width), rtol=0, atol=slack):
            return rows, n // rows
    return None
