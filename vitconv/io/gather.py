"""Read a strided view of a storage into C order. numpy is imported only here, and only for such views."""

from __future__ import annotations

from vitconv.io.tensor import Stored, span


def gather(stored: Stored, data: bytes | bytearray | memoryview) -> memoryview:
    """Return the C-contiguous bytes of `stored`; `data` holds its elements from `start` on, as far as it reaches."""
    import numpy as np

    width = np.dtype(f"u{stored.itemsize}")
    flat = np.frombuffer(data, dtype=width, count=span(stored.shape, stored.strides))
    strides = [stride * stored.itemsize for stride in stored.strides or ()]
    view = np.lib.stride_tricks.as_strided(flat, stored.shape, strides, writeable=False)
    dense = np.ascontiguousarray(view).reshape(-1).view(np.uint8)
    return memoryview(dense)  # type: ignore[arg-type]  # numpy's stubs know of buffers from Python 3.12 on
