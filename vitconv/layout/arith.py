"""Bytes of a float dtype to arrays and back, rounded to nearest even, and what a rounding costs.

Only edits compute; a conversion that moves elements never comes here, so that NaN payloads survive it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vitconv.errors import Refused
from vitconv.record import dataclass

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

FLOATS = ("F64", "F32", "F16", "BF16")

# Largest finite value and smallest normal value; BF16 has 8 bits of significand and float32's exponents.
LARGEST = {
    "F64": 1.7976931348623157e308,
    "F32": 3.4028234663852886e38,
    "F16": 65504.0,
    "BF16": 3.3895313892515355e38,
}
SMALLEST_NORMAL = {"F64": 2.0**-1022, "F32": 2.0**-126, "F16": 2.0**-14, "BF16": 2.0**-126}

# Elements rounded at a time, which bounds the memory and stays in cache.
_CHUNK = 1 << 16


@dataclass(frozen=True)
class CastReport:
    """What rounding an array to a dtype does to its elements.

    Attributes:
        source / target: dtypes.
        numel: number of elements.
        overflow: finite elements that become infinite.
        underflow: elements that are not zero and become zero.
        subnormal: elements that become subnormal, so that they keep fewer bits.
        nan: elements that are NaN, before as after.
        max_relative_error: of the elements that stay finite and do not become zero.
    """

    source: str
    target: str
    numel: int = 0
    overflow: int = 0
    underflow: int = 0
    subnormal: int = 0
    nan: int = 0
    max_relative_error: float = 0.0

    def __add__(self, other: CastReport) -> CastReport:
        """Return the report of both arrays together; the source is that of the first."""
        return CastReport(
            self.source,
            self.target,
            self.numel + other.numel,
            self.overflow + other.overflow,
            self.underflow + other.underflow,
            self.subnormal + other.subnormal,
            self.nan + other.nan,
            max(self.max_relative_error, other.max_relative_error),
        )

    def __str__(self) -> str:
        """Return the counts in words."""
        counts = {
            "overflow": self.overflow,
            "become zero": self.underflow,
            "become subnormal": self.subnormal,
            "are NaN": self.nan,
        }
        said = [f"{n} {what}" for what, n in counts.items() if n]
        error = f"largest relative error {self.max_relative_error:.2g}"
        return f"of {self.numel} elements " + ", ".join([*(said or ["none overflows or becomes zero"]), error])


def require_float(dtype: str, what: str = "this tensor") -> None:
    """Check that elements of `dtype` can be computed with.

    Raises:
        Refused: an integer, a quantised or an 8-bit float dtype.
    """
    if dtype.startswith("F8"):
        raise Refused(
            f"{what} is {dtype}, an 8-bit float whose values need a scale that is kept elsewhere; its bytes can be"
            " moved but not computed with: convert from the file in its training dtype"
        )
    if dtype not in FLOATS:
        raise Refused(f"{what} is {dtype}; edits compute with {', '.join(FLOATS)} only")


def to_float(buffer: Any, dtype: str, shape: tuple[int, ...]) -> Array:
    """Return elements as an array: [shape], float64 for F64, else float32; every value is represented exactly.

    Args:
        buffer: little-endian elements, C-contiguous: bytes, a memoryview, or an array of any dtype of that width.
        dtype: one of FLOATS.
        shape: of the tensor.

    Raises:
        Refused: `dtype` is not a float dtype that can be computed with.
    """
    import numpy as np

    require_float(dtype)
    kind = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}[dtype]
    raw = np.ascontiguousarray(buffer).reshape(-1).view(np.uint8) if isinstance(buffer, np.ndarray) else buffer
    flat = np.frombuffer(raw, kind)
    if dtype == "F16":
        flat = flat.astype(np.float32)
    elif dtype == "BF16":
        flat = (flat.astype(np.uint32) << 16).view(np.float32)
    return flat.reshape(shape)


def from_float(array: Any, dtype: str) -> memoryview:
    """Return the little-endian bytes of a float array in `dtype`, rounded once, to nearest even.

    Values past the largest finite one become infinite, as IEEE 754 has it; NaN stays NaN, of the same sign.

    Args:
        array: float64 or float32.
        dtype: one of FLOATS.

    Raises:
        Refused: `dtype` is not a float dtype that can be computed with.
    """
    import numpy as np

    require_float(dtype)
    values = np.ascontiguousarray(array)
    if values.dtype not in (np.float32, np.float64):
        values = values.astype(np.float64)
    if dtype == "BF16":
        out: Array = _bf16(values)
    else:
        kind = {"F64": "<f8", "F32": "<f4", "F16": "<f2"}[dtype]
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            out = values.astype(kind, copy=False)
    raw: Any = out.reshape(-1).view(np.uint8)
    return memoryview(raw)


def _bf16(values: Array) -> Array:
    """Return bfloat16 bits: uint16. Chunks of the size of a cache are both faster and lighter than the whole."""
    import numpy as np

    flat = values.reshape(-1)
    out = np.empty(flat.size, "<u2")
    for at in range(0, flat.size, _CHUNK):
        part = flat[at : at + _CHUNK]
        bits = (_odd32(part) if part.dtype == np.float64 else part).view(np.uint32)
        out[at : at + _CHUNK] = (bits + (((bits >> 16) & 1) + np.uint32(0x7FFF))) >> 16
        # NaN is put in last: its bits would overflow into another number.
        nan = np.isnan(part)
        if nan.any():
            out[at : at + _CHUNK][nan] = (bits[nan] >> 16) & 0x8000 | 0x7FC0
    return out


def _odd32(values: Array) -> Array:
    """Return float64 values as float32, rounded to odd, so that rounding once more to bfloat16 is a single rounding."""
    import numpy as np

    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        near = values.astype(np.float32)
        back = near.astype(np.float64)
        away = np.abs(back) > np.abs(values)
        inexact = (back != values) & ~np.isnan(values)
    bits = near.view(np.uint32)
    bits = np.where(away, bits - np.uint32(1), bits)
    return np.where(inexact, bits | np.uint32(1), bits).astype(np.uint32).view(np.float32)


def cast_report(array: Any, source: str, target: str) -> CastReport:
    """Count what rounding a float array to the dtype `target` does; nothing is kept.

    Args:
        array: float64 or float32.
        source: dtype the elements have now, for the record.
        target: one of FLOATS.
    """
    import numpy as np

    flat = np.ascontiguousarray(array).reshape(-1)
    total = CastReport(source, target)
    for at in range(0, flat.size, _CHUNK):
        total = total + _report(flat[at : at + _CHUNK], source, target)
    return total


def _report(x: Array, source: str, target: str) -> CastReport:
    import numpy as np

    y = to_float(from_float(x, target), target, x.shape)
    size, rounded = np.abs(x), np.abs(y)
    zero, infinite = rounded == 0, np.isinf(rounded)
    zeros = int(np.count_nonzero(zero))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        error = np.abs(y - x) / size
    np.putmask(error, zero | infinite, 0)
    largest = float(np.fmax.reduce(error, initial=0.0))
    return CastReport(
        source,
        target,
        x.size,
        int(np.count_nonzero(infinite)) - int(np.count_nonzero(np.isinf(size))),
        zeros - int(np.count_nonzero(size == 0)),
        int(np.count_nonzero(rounded < SMALLEST_NORMAL[target])) - zeros,
        int(np.count_nonzero(np.isnan(x))),
        largest,
    )
