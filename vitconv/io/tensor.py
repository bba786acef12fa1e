"""Where the bytes of a tensor lie: a blob of a file, and a view into it. Elements are moved by width, not by value."""

from __future__ import annotations

from math import prod

from vitconv.record import dataclass

# Listed in the rank order of the reference writer (safetensors/src/tensor.rs, enum Dtype): files are sorted by it.
ITEMSIZE: dict[str, int] = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "F8_E5M2": 1,
    "F8_E4M3": 1,
    "F8_E8M0": 1,
    "F8_E4M3FNUZ": 1,
    "F8_E5M2FNUZ": 1,
    "I16": 2,
    "U16": 2,
    "F16": 2,
    "BF16": 2,
    "I32": 4,
    "U32": 4,
    "F32": 4,
    "C64": 8,
    "F64": 8,
    "I64": 8,
    "U64": 8,
}
RANK: dict[str, int] = {name: rank for rank, name in enumerate(ITEMSIZE)}


@dataclass(frozen=True)
class Blob:
    """Name a run of bytes.

    `file` counts in `Checkpoint.files`; a negative number -1-k means piece k of the bytes held in memory (arrays that
    lay inside a pickle). With `member`, a compressed zip member, `offset` counts in the inflated bytes.
    """

    file: int
    offset: int
    nbytes: int
    member: str | None = None


@dataclass(frozen=True)
class Stored:
    """Describe one tensor of a checkpoint without its data.

    `path` holds the containers, then the key. `start` and `strides` count elements inside `blob`; `strides` is None
    for a C-contiguous tensor.
    """

    path: tuple[str, ...]
    dtype: str
    shape: tuple[int, ...]
    blob: Blob
    start: int = 0
    strides: tuple[int, ...] | None = None

    @property
    def key(self) -> str:
        """Return the name inside the innermost container."""
        return self.path[-1]

    @property
    def itemsize(self) -> int:
        """Return the width of one element in bytes."""
        return ITEMSIZE[self.dtype]

    @property
    def numel(self) -> int:
        """Return the number of elements."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Return the size of the C-contiguous tensor in bytes."""
        return prod(self.shape) * ITEMSIZE[self.dtype]

    @property
    def contiguous(self) -> bool:
        """Say whether the elements lie in C order without gaps."""
        return self.strides is None or is_contiguous(self.shape, self.strides)


def c_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides, in elements, of a C-contiguous tensor of this shape."""
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def is_contiguous(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Say whether `strides` walk `shape` in C order; axes of size 1 may have any stride."""
    if 0 in shape:
        return True
    wanted = c_strides(shape)
    return all(size == 1 or have == want for size, have, want in zip(shape, strides, wanted, strict=True))


def span(shape: tuple[int, ...], strides: tuple[int, ...] | None) -> int:
    """Return how many elements a view reaches over, from its first to its last one: 0 for an empty tensor."""
    if 0 in shape:
        return 0
    if strides is None:
        return prod(shape)
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
