"""Resize tables of relative positions by a geometric sequence: near offsets keep their places, far ones spread.

The old offsets are put at 0, 1, 1 + q, 1 + q + q^2, ... with the q between 1.01 and 1.5 that makes them reach as far as
the new ones; a spline through them, per axis, is read at the new offsets and held constant beyond its ends. Source:
microsoft/unilm beit/run_class_finetuning.py, 768a3c8 (cubic, by scipy's interp2d); timm/layers/pos_embed_rel.py, 1.0.31
(linear). An axis that keeps its length stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vitconv.errors import Refused

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

# {rule: degree of the spline}.
DEGREES: Mapping[str, int] = {"geometric": 3, "geometric-linear": 1}


def axis_matrix(source: int, target: int, degree: int) -> Array:
    """Return the matrix that takes `source` values of one axis to `target` values: [target source], float64.

    Raises:
        Refused: a cubic through fewer than four values.
    """
    import numpy as np

    if source == target:
        return np.eye(source)
    if source <= degree:
        raise Refused(
            f"geometric: a cubic needs four offsets along a side, and there are {source}; say rule=geometric-linear"
        )
    at = _places(source, target)
    reach = target // 2
    new = np.clip(np.arange(-reach, reach + 1, dtype=np.float64), at[0], at[-1])
    # Not a knot: the first and last two pieces of a cubic are one, as FITPACK has it for interpolation.
    inner = at[2:-2] if degree == 3 else at[1:-1]
    knots = np.concatenate([[at[0]] * (degree + 1), inner, [at[-1]] * (degree + 1)])
    return _splines(new, knots, degree) @ np.linalg.inv(_splines(at, knots, degree))


def resize_offsets(table: Any, source: tuple[int, int], target: tuple[int, int], rule: str) -> Array:
    """Return a table [rows heads] of `source` (rows, columns) offsets as one of `target` offsets, in float64."""
    import numpy as np

    down, right = (axis_matrix(s, t, DEGREES[rule]) for s, t in zip(source, target, strict=True))
    grid = np.asarray(table, np.float64).reshape(*source, -1)
    out: Array = np.einsum("ys,xt,sth->yxh", down, right, grid).reshape(target[0] * target[1], -1)
    return out


def pull_back_offsets(grad: Any, source: tuple[int, int], target: tuple[int, int], rule: str) -> Array:
    """Return the transpose of `resize_offsets` applied to a gradient: float64."""
    import numpy as np

    down, right = (axis_matrix(s, t, DEGREES[rule]) for s, t in zip(source, target, strict=True))
    grid = np.asarray(grad, np.float64).reshape(*target, -1)
    out: Array = np.einsum("ys,xt,yxh->sth", down, right, grid).reshape(source[0] * source[1], -1)
    return out


def _places(source: int, target: int) -> Array:
    """Return where the old offsets are put, symmetric about zero."""
    import numpy as np

    left, right, steps = 1.01, 1.5, source // 2
    q = right
    while right - left > 1e-6:
        q = (left + right) / 2
        if (1 - q**steps) / (1 - q) > target // 2:
            right = q
        else:
            left = q
    far = np.cumsum(q ** np.arange(steps))
    return np.concatenate([-far[::-1], [0.0], far])


def _splines(x: Array, knots: Array, degree: int) -> Array:
    """Return the values of all B-splines at x, by the recursion of Cox and de Boor: [x splines]."""
    import numpy as np

    count = len(knots) - degree - 1
    # The last place belongs to the last piece that is not empty.
    piece = np.clip(np.searchsorted(knots, x, side="right") - 1, degree, count - 1)
    out: Array = (piece[:, None] == np.arange(len(knots) - 1)).astype(np.float64)
    for k in range(1, degree + 1):
        width = knots[k:] - knots[:-k]
        safe = np.where(width > 0, width, 1.0)
        rise = (x[:, None] - knots[: len(width)]) / safe
        fall = (knots[k + 1 :] - x[:, None]) / safe[1:]
        out = rise[:, : len(width) - 1] * out[:, :-1] + fall * out[:, 1:]
    return out
