"""Buffers that follow from sizes alone: made anew when a layout holds them, compared when a file does.

    relative-index       [w^2 w^2], or flat [w^4]: row of the table for every pair of places in a window
    shift-mask:HxW       [windows w^2 w^2]: -100 between places that a shifted window must keep apart, else 0
    class-index          [1+n 1+n], rope-cos, rope-sin [n e] or [rows columns e]: see `token_buffers`
    coords:P             [1 2w-1 2w-1 2]: logarithms of relative coordinates; P the window of pre-training, 0 none

Source: microsoft/Swin-Transformer models/swin_transformer.py and swin_transformer_v2.py; Liu et al., Swin Transformer,
2021, section 3.2, and Swin V2, 2022, equation 4.
"""

from __future__ import annotations

from math import isqrt
from typing import Any

from vitconv.errors import LayoutError

NAMES = ("relative-index", "relative-index-flat", "shift-mask", "coords", "class-index", "rope-cos", "rope-sin")
# A table of float32 logarithms differs between libraries in the last place.
CLOSE = 1e-6
_LARGEST_PRETRAINED = 128


def is_buffer(value: object) -> bool:
    """Say whether a constant's value names one of these buffers."""
    return isinstance(value, str) and value.partition(":")[0] in NAMES


def buffer(value: str, shape: tuple[int, ...]) -> Any:
    """Return a buffer as a numpy array: int64 for an index, float64 else.

    Raises:
        LayoutError: the shape is none that this buffer can have.
    """
    name, _, told = value.partition(":")
    if name in ("relative-index", "relative-index-flat"):
        return _index(_side(shape, flat=name.endswith("flat"))).reshape(shape)
    if name == "shift-mask":
        side = _side(shape[1:], flat=False)
        grid = tuple(map(int, told.split("x"))) if told else (isqrt(shape[0]) * side,) * 2
        if grid[0] * grid[1] != shape[0] * side**2:
            raise LayoutError(f"a mask of {shape[0]} windows of {side}x{side}: not those of a square map")
        return _mask(side, grid)
    if len(shape) != 4 or shape[0] != 1 or shape[1] != shape[2] or shape[3] != 2 or shape[1] % 2 == 0:
        raise LayoutError(f"a table of relative coordinates has shape [1 2w-1 2w-1 2], not {list(shape)}")
    return _coords((shape[1] + 1) // 2, int(told or 0))


def agrees(value: str, found: Any, slack: float = CLOSE) -> bool:
    """Say whether an array that was read is this buffer; of `coords` without a number, for any pre-training window."""
    import numpy as np

    if value in ("class-index", "rope-cos", "rope-sin"):
        from vitconv.layout.token_buffers import fits

        return fits(value, found, slack)
    try:
        if value == "coords":
            return pretrained_window(found, slack) is not None
        want = buffer(value, found.shape)
    except LayoutError:
        return False
    if value.startswith("coords"):
        return bool(np.allclose(found, want, rtol=slack, atol=slack))
    return bool(np.array_equal(found, want))


def pretrained_window(found: Any, slack: float = CLOSE) -> int | None:
    """Return the pre-training window that a table of relative coordinates was made for, 0 for its own, or None."""
    import numpy as np

    for side in range(_LARGEST_PRETRAINED + 1):
        if side != 1 and np.allclose(found, buffer(f"coords:{side}", found.shape), rtol=slack, atol=slack):
            return side
    return None


def _side(shape: tuple[int, ...], *, flat: bool) -> int:
    places = isqrt(shape[0]) if flat else shape[0]
    side = isqrt(places)
    if (shape != (places**2,) if flat else shape != (places, places)) or side**2 != places:
        raise LayoutError(f"an index of relative positions of a square window, not of shape {list(shape)}")
    return side


def _index(w: int) -> Any:
    import numpy as np

    rows, columns = np.divmod(np.arange(w * w), w)
    down, right = (x[:, None] - x[None, :] + w - 1 for x in (rows, columns))
    return down * (2 * w - 1) + right


def _mask(w: int, grid: tuple[int, ...]) -> Any:
    """Label what the cyclic shift by w // 2 brings together, then forbid pairs of different labels in a window."""
    import numpy as np

    def band(n: int) -> Any:
        at = np.arange(n)
        return (at >= n - w).astype(int) + (at >= n - w // 2)

    labels = 3 * band(grid[0])[:, None] + band(grid[1])[None, :]
    windows = labels.reshape(grid[0] // w, w, grid[1] // w, w).transpose(0, 2, 1, 3).reshape(-1, w * w)
    return np.where(windows[:, None, :] == windows[:, :, None], 0.0, -100.0)


def _coords(w: int, pretrained: int) -> Any:
    import numpy as np

    at = np.arange(1 - w, w, dtype=np.float32) * np.float32(8) / np.float32(max((pretrained or w) - 1, 1))
    line = np.sign(at) * np.log2(np.abs(at) + 1) / np.log2(np.float32(8))
    return np.stack(np.meshgrid(line, line, indexing="ij"), -1)[None].astype(np.float64)
