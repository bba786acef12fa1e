"""NaN and Inf among weights: they are carried as they are, and told where that costs nothing.

A training that diverged leaves NaN in every parameter, so that the gains of two norms tell of it in every conversion.
Every element is looked at with `--prove`, which reads them all anyway, and by `inspect --health`.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from vitconv.io.tensor import Stored
from vitconv.io.threads import in_threads
from vitconv.layout.canonical import role_of
from vitconv.layout.match import Match, collapse

Read = Callable[[Stored], Any]
# {dtype: (numpy's integers of its width, its exponent when every bit of that is set)}.
_EXPONENTS = {
    "F64": ("<u8", 0x7FF0000000000000),
    "F32": ("<u4", 0x7F800000),
    "F16": ("<u2", 0x7C00),
    "BF16": ("<u2", 0x7F80),
}
_CODES = {"F64": "d", "F32": "f", "F16": "e"}
# Elements at a time, so that they stay in a processor's cache.
_CHUNK = 1 << 16
_SHOWN = 6


def norm_lines(match: Match, stored: Mapping[str, Stored], read: Read) -> list[str]:
    """Return a warning if the first or the last norm's weights hold NaN or Inf; no other weights are read."""
    keys = [b.key for b in match.bound if len(b.parts) == 1 and role_of(b.parts[0]) == "norm.weight"]
    keys = [k for k in dict.fromkeys((*keys[:1], *keys[-1:])) if stored[k].dtype in _EXPONENTS]
    bad = [k for k in keys if not _finite(bytes(read(stored[k])), stored[k].dtype)]
    if not bad:
        return []
    left = f"warning: NaN or Inf in {', '.join(bad)}, as a training that diverged leaves them"
    return [f"{left}: carried as they are (inspect --health counts them in every tensor)"]


def _finite(raw: bytes, dtype: str) -> bool:
    # Without numpy: this is looked at in every conversion.
    if dtype == "BF16":
        wide = bytearray(2 * len(raw))
        wide[2::4], wide[3::4] = raw[0::2], raw[1::2]
        raw, dtype = bytes(wide), "F32"
    code = _CODES[dtype]
    return all(map(math.isfinite, struct.unpack(f"<{len(raw) // struct.calcsize(code)}{code}", raw)))


def all_lines(stored: Mapping[str, Stored], look: Read) -> list[str]:
    """Return a warning that names every tensor with NaN or Inf in it, and how many elements that are.

    Args:
        stored: {key: tensor}.
        look: gives the bytes of a tensor in C order.
    """
    counts: dict[str, int] = {}

    def count(key: str) -> None:
        counts[key] = _count(look(stored[key]), stored[key].dtype)

    in_threads(count, [key for key, t in stored.items() if t.dtype in _EXPONENTS and t.numel])
    bad = {key: n for key in stored if (n := counts.get(key))}
    if not bad:
        return []
    names = collapse(bad)
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    where = f"in {len(bad)} tensors: {', '.join(names[:_SHOWN])}{more}"
    return [f"warning: {sum(bad.values())} elements are NaN or Inf, {where}; carried as they are"]


def _count(raw: Any, dtype: str) -> int:
    import numpy as np

    kind, exponent = _EXPONENTS[dtype]
    bits, exponents = np.frombuffer(raw, kind), np.array(exponent, kind)
    return sum(int(np.count_nonzero((part & exponents) == exponents)) for part in _parts(bits))


def _parts(bits: Any) -> Iterable[Any]:
    return (bits[at : at + _CHUNK] for at in range(0, len(bits), _CHUNK))
