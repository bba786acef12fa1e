"""Canonical tensors that a dialect does not store because its library makes them up: no loss if they are equal.

A dialect says so by template: `{"blocks.{i}.attn.k.bias": "zero"}`. The values are compared when they are read, so a
tensor that is not what the library would make up is refused and never dropped in silence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vitconv.layout.canonical import SCHEMA, kind_of

if TYPE_CHECKING:
    from vitconv.layout.dialect import Dialect

WORDS = {
    "zero": "zeros, which is what is computed without it",
    "dead": "multiplied by zero in the source, so no part of the function",
    "training": "used in training only",
    "sincos": "the sines and cosines that its code makes anew",
    "rope-periods": "the periods that follow from the head width and the base of the rotary positions",
}


def derived_as(dialect: Dialect, name: str) -> str:
    """Return how the dialect's library makes up a canonical tensor, or "" when it does not."""
    template = kind_of(name)
    if template in SCHEMA and SCHEMA[template].role.partition(".")[0] in ("dead", "training"):
        return SCHEMA[template].role.partition(".")[0]
    return dialect.derived.get(template, "").partition(":")[0] and dialect.derived[template]


def wrong(how: str, values: Any) -> str:
    """Return in words how values differ from what the library makes up, or "" when they are equal.

    Periods that were rounded to bfloat16, as training keeps them, count as equal; see `rounded`.

    Args:
        how: `zero`, `dead`, `rope-periods:BASE` for BASE^(k / size), k = 0, 1, ..., or `sincos:KIND` and, where the
            grid is known, `sincos:KIND:ROWSxCOLUMNS`.
        values: the tensor as a float array.
    """
    import numpy as np

    kind, _, base = how.partition(":")
    if kind in ("dead", "training") or not values.size:
        return ""
    if kind == "sincos":
        return _not_sincos(base, values)
    if kind == "zero":
        largest = float(np.abs(values).max()) if not np.isnan(values).any() else float("nan")
        return "" if largest == 0.0 else f"not zero (up to {largest:.3g})"
    error = _off(values, float(base))
    return "" if error <= 2.0**-6 else f"not the periods of base {base} (off by {error:.2g})"


def _not_sincos(base: str, values: Any) -> str:
    from vitconv.layout.sincos import grid_of

    kind, _, grid = base.partition(":")
    found = grid_of(kind, values)
    if found is None:
        return f"not the table of sines and cosines of {kind}"
    said = f"{found[0]}x{found[1]}"
    return f"the table of a grid of {said}, not of {grid}" if grid and grid != said else ""


def rounded(how: str, values: Any) -> str:
    """Return a remark on values that pass as equal and were rounded, or ""."""
    kind, _, base = how.partition(":")
    if kind != "rope-periods":
        return ""
    error = _off(values, float(base))
    if error <= 1e-6:
        return ""
    return f"rounded in the source (off by {error:.2g}, as bfloat16 is); the target computes them in float32"


def _off(values: Any, base: float) -> float:
    import numpy as np

    return float(np.max(np.abs(values / rope_periods(values.size, base) - 1)))


def made_up(value: float | str, shape: tuple[int, ...]) -> Any:
    """Return a tensor that is made up when a dialect is written: a number everywhere, or as `wrong` has it."""
    import numpy as np

    if isinstance(value, str):
        return rope_periods(shape[0], float(value.partition(":")[2]))
    return np.full(shape, value)


def rope_periods(size: int, base: float) -> Any:
    """Return the periods of rotary positions: base^(k / size), float64 [size].

    Source: facebookresearch/dinov3, dinov3/layers/rope_position_encoding.py, `periods` for `base`.
    """
    import numpy as np

    return base ** (np.arange(size, dtype=np.float64) / size)
