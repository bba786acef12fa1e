"""Buffers that follow from sizes alone: made anew when a layout holds them, compared when a file does.

    relative-index:hxw     [t t], or flat [t^2], t = h w: row of the table for every pair of places in a window
    shift-mask:HxW:hxw     [windows t t]: -100 between places that a shifted window must keep apart, else 0; H x W is
                           the map
    class-index:hxw        [1+n 1+n], and rope-cos:hxw:REFERENCE:PRECISION, rope-sin:... [n e]: see `token_buffers`
    coords:P               [1 2h-1 2w-1 2]: logarithms of relative coordinates; P the window of pre-training, 0 none

Sides of a window or map that are not said are those of a square; any will do when a buffer is compared.

Source: microsoft/Swin-Transformer models/swin_transformer.py and swin_transformer_v2.py; Liu et al., Swin Transformer,
2021, section 3.2, and Swin V2, 2022, equation 4.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import isqrt
from typing import Any

from vitconv.errors import LayoutError

TOKENS = ("class-index", "rope-cos", "rope-sin")
NAMES = ("relative-index", "relative-index-flat", "shift-mask", "coords", *TOKENS)
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
    if name in TOKENS:
        from vitconv.layout.token_buffers import token_buffer

        return token_buffer(value, shape)
    if name in ("relative-index", "relative-index-flat"):
        places = isqrt(shape[0]) if name.endswith("flat") else shape[0]
        window = _pair(told) or _square(places)
        if window is None or window[0] * window[1] != places or shape not in ((places, places), (places**2,)):
            raise LayoutError(f"an index of relative positions of a square window, not of shape {list(shape)}")
        return _index(*window).reshape(shape)
    if name == "shift-mask":
        grid, _, sides = told.partition(":")
        window = _pair(sides) or _square(shape[1])
        if window is None or shape[1:] != (window[0] * window[1],) * 2:
            raise LayoutError(f"a mask of windows of {sides or 'equal sides'}, not of shape {list(shape)}")
        many = _square(shape[0])
        size = _pair(grid) or (many and (many[0] * window[0], many[1] * window[1]))
        if not size or size[0] * size[1] != shape[0] * shape[1] or size[0] % window[0] or size[1] % window[1]:
            raise LayoutError(f"a mask of {shape[0]} windows of {window[0]}x{window[1]}: not those of a square map")
        return _mask(window, size)
    if len(shape) != 4 or shape[0] != 1 or shape[3] != 2 or shape[1] % 2 == 0 or shape[2] % 2 == 0:
        raise LayoutError(f"a table of relative coordinates has shape [1 2h-1 2w-1 2], not {list(shape)}")
    return _coords((shape[1] + 1) // 2, (shape[2] + 1) // 2, int(told or 0))


def agrees(value: str, found: Any, slack: float = CLOSE) -> bool:
    """Say whether an array that was read is this buffer, of any sides that its value does not say."""
    import numpy as np

    name, _, told = value.partition(":")
    if name in TOKENS:
        from vitconv.layout.token_buffers import fits

        return fits(value, found, slack)
    if not told:
        whose = {"coords": pretrained_window, "shift-mask": mask_of}.get(name)
        return (whose(found, slack) if whose else window_of(found)) is not None
    try:
        want = buffer(value, found.shape)
    except LayoutError:
        return False
    if name == "coords":
        return bool(np.allclose(found, want, rtol=slack, atol=slack))
    return bool(np.array_equal(found, want))


def window_of(index: Any) -> tuple[int, int] | None:
    """Return the (height, width) of the window that an index of relative positions is made for, or None."""
    import numpy as np

    places = isqrt(index.shape[0]) if index.ndim == 1 else index.shape[0]
    if index.ndim not in (1, 2) or index.size != places**2 or not places:
        return None
    flat = index.reshape(places, places)
    return next((w for w in _pairs(places) if np.array_equal(flat, _index(*w))), None)


def mask_of(found: Any, slack: float = CLOSE) -> tuple[tuple[int, int], tuple[int, int]] | None:
    """Return the (window, map) that a mask of shifted windows is made for, or None; squares are tried first."""
    import numpy as np

    if found.ndim != 3 or found.shape[1] != found.shape[2] or not found.size:
        return None
    for window in _pairs(found.shape[1]):
        for rows, columns in _pairs(found.shape[0]):
            grid = (rows * window[0], columns * window[1])
            if np.allclose(found, _mask(window, grid), rtol=slack, atol=slack):
                return window, grid
    return None


def pretrained_window(found: Any, slack: float = CLOSE) -> int | None:
    """Return the pre-training window that a table of relative coordinates was made for, 0 for its own, or None."""
    import numpy as np

    for side in range(_LARGEST_PRETRAINED + 1):
        if side != 1 and np.allclose(found, buffer(f"coords:{side}", found.shape), rtol=slack, atol=slack):
            return side
    return None


def _pair(text: str) -> tuple[int, int] | None:
    high, _, wide = text.partition("x")
    return (int(high), int(wide)) if text else None


def _square(product: int) -> tuple[int, int] | None:
    side = isqrt(product)
    return (side, side) if side * side == product else None


def _pairs(product: int) -> Iterator[tuple[int, int]]:
    """Yield the two sides of every rectangle of this size, a square first."""
    same = _square(product)
    if same:
        yield same
    yield from ((n, product // n) for n in range(1, product + 1) if product % n == 0 and n * n != product)


def _index(high: int, wide: int) -> Any:
    import numpy as np

    rows, columns = np.divmod(np.arange(high * wide), wide)
    down, right = (x[:, None] - x[None, :] for x in (rows, columns))
    return (down + high - 1) * (2 * wide - 1) + right + wide - 1


def _mask(window: tuple[int, int], grid: tuple[int, int]) -> Any:
    """Label what the cyclic shift by half a window brings together, then forbid pairs of different labels in one."""
    import numpy as np

    def band(n: int, w: int) -> Any:
        at = np.arange(n)
        return (at >= n - w).astype(int) + (at >= n - w // 2)

    (high, wide), (rows, columns) = window, grid
    labels = 3 * band(rows, high)[:, None] + band(columns, wide)[None, :]
    windows = labels.reshape(rows // high, high, columns // wide, wide).transpose(0, 2, 1, 3).reshape(-1, high * wide)
    return np.where(windows[:, None, :] == windows[:, :, None], 0.0, -100.0)


def _coords(high: int, wide: int, pretrained: int) -> Any:
    import numpy as np

    def line(side: int) -> Any:
        at = np.arange(1 - side, side, dtype=np.float32) * np.float32(8) / np.float32(max((pretrained or side) - 1, 1))
        return np.sign(at) * np.log2(np.abs(at) + 1) / np.log2(np.float32(8))

    return np.stack(np.meshgrid(line(high), line(wide), indexing="ij"), -1)[None].astype(np.float64)
