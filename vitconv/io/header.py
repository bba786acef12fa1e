"""The header of a safetensors file: planned from names and shapes alone, before a byte of data is read."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from math import prod

from vitconv.errors import LayoutError, UsageError
from vitconv.io.segment import Segment
from vitconv.io.tensor import ITEMSIZE, RANK
from vitconv.record import dataclass

# The reference reader refuses longer headers (safetensors/src/tensor.rs, MAX_HEADER_SIZE).
MAX_HEADER = 100_000_000

Chunk = Segment | bytes | bytearray | memoryview


@dataclass(frozen=True)
class Out:
    """Describe one tensor to be written.

    `chunks()` gives its bytes in C order, as byte ranges of open files or as buffers, exactly `nbytes` in all. It is
    called when the tensor's turn comes, and once more, before, where blocks may be shared instead of copied.
    """

    key: str
    dtype: str
    shape: tuple[int, ...]
    chunks: Callable[[], Iterable[Chunk]]

    @property
    def nbytes(self) -> int:
        """Return the size in bytes."""
        return prod(self.shape) * ITEMSIZE[self.dtype]


def file_order(outs: Iterable[Out]) -> list[Out]:
    """Sort as the reference writer does: by dtype, the widest first, then by name."""
    return sorted(outs, key=lambda out: (-RANK[out.dtype], out.key))


def header_bytes(outs: Iterable[Out], metadata: Mapping[str, str] | None, *, align: int = 8, residue: int = 0) -> bytes:
    """Return the length field and the JSON header, padded with spaces.

    The data start right after it, at a position that leaves `residue` when divided by `align`; both are multiples of
    8. `metadata` None leaves `__metadata__` out, as the reference writer does.

    Raises:
        UsageError: a name or a metadata text cannot be written as UTF-8, or a name is given twice.
    """
    if align % 8 or residue % 8:
        raise LayoutError(f"safetensors data start at multiples of 8, not at {residue} modulo {align}")
    entries: dict[str, object] = {}
    if metadata is not None:
        entries["__metadata__"] = dict(metadata)
    position = 0
    twice: list[str] = []
    for out in outs:
        if out.key in entries:
            twice.append(out.key)
        end = position + out.nbytes
        entries[out.key] = {"dtype": out.dtype, "shape": list(out.shape), "data_offsets": [position, end]}
        position = end
    if twice:
        raise UsageError(f"the output would hold these names twice: {', '.join(sorted(set(twice))[:8])}")
    try:
        text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        raise UsageError(f"a tensor name or metadata text is not valid Unicode: {error.object!r:.80}") from error
    text += b" " * ((residue - 8 - len(text)) % align)
    if len(text) > MAX_HEADER:
        raise UsageError(f"the header would take {len(text)} bytes, safetensors allows {MAX_HEADER}")
    return len(text).to_bytes(8, "little") + text
