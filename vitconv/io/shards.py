"""Several files that make up one checkpoint: do they agree with their index and with each other?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from vitconv.errors import BadFile
from vitconv.io.contents import Contents, some
from vitconv.io.folder import Place
from vitconv.io.tensor import Stored

_PIECE = 4 << 20


class Readable(Protocol):
    """A checkpoint, as far as its tensors have to be compared."""

    path: Path
    tensors: tuple[Stored, ...]
    files: tuple[Path, ...]

    def read_range(self, stored: Stored, start: int, stop: int) -> bytes:
        """Return some bytes of a tensor in C order."""


def common_format(path: Path, place: Place, parts: Sequence[Contents]) -> str:
    """Return the format of all files together.

    Raises:
        BadFile: they are of different kinds.
    """
    formats = sorted({part.format for part in parts})
    if len(formats) > 1:
        raise BadFile(f"{path}: its files are of different kinds: {', '.join(formats)}")
    sharded = len(parts) > 1 or place.index is not None
    return "safetensors-sharded" if formats == ["safetensors"] and sharded else formats[0]


def renumber(parts: Sequence[Contents]) -> list[Contents]:
    """Make the blobs of part k point to file k, and those held in memory to one common list."""
    moved: list[Contents] = []
    pieces = 0
    for number, part in enumerate(parts):
        tensors: list[Stored] = []
        for stored in part.tensors:
            file = number if stored.blob.file >= 0 else stored.blob.file - pieces
            same = file == stored.blob.file
            tensors.append(stored if same else replace(stored, blob=replace(stored.blob, file=file)))
        pieces += len(part.memory)
        moved.append(replace(part, tensors=tensors))
    return moved


def check_index(path: Path, place: Place, parts: Sequence[Contents]) -> None:
    """Hold the index to what the files have: each name in the file it names, and none left over.

    Raises:
        BadFile: the index is stale.
    """
    if place.index is None:
        return
    held = {file.name: {stored.key for stored in part.tensors} for file, part in zip(place.files, parts, strict=True)}
    missing = [key for key, name in place.index.items() if key not in held[name]]
    extra = [key for keys in held.values() for key in keys if key not in place.index]
    if missing or extra:
        faults = [f"it lists {some(missing)}, which the files named do not hold"] if missing else []
        faults += [f"it does not list {some(sorted(extra))}"] if extra else []
        raise BadFile(
            f"{path}: the index does not fit its {len(place.files)} files: {'; '.join(faults)}. Fetch the files that"
            " belong together, or ignore the index (--ignore-index) to take what the files hold"
        )


def find_twins(whole: Readable, place: Place) -> set[Stored]:
    """Return the tensors to leave out because another file holds the same one.

    Raises:
        BadFile: two files hold different data under one name.
    """
    first: dict[tuple[str, ...], Stored] = {}
    twins: set[Stored] = set()
    different: list[str] = []
    for stored in whole.tensors:
        other = first.setdefault(stored.path, stored)
        if other is stored:
            continue
        if not _equal(whole, stored, other):
            different.append(stored.key)
        named = place.index.get(stored.key) if place.index else None
        keep = stored if named == whole.files[stored.blob.file].name else other
        first[stored.path] = keep
        twins.add(other if keep is stored else stored)
    if different:
        raise BadFile(f"{whole.path}: two files hold different data under the same names: {some(different)}")
    return twins


def _equal(whole: Readable, one: Stored, two: Stored) -> bool:
    if (one.dtype, one.shape) != (two.dtype, two.shape):
        return False
    for start in range(0, one.nbytes, _PIECE):
        stop = min(start + _PIECE, one.nbytes)
        if whole.read_range(one, start, stop) != whole.read_range(two, start, stop):
            return False
    return True
