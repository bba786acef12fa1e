"""Open a distributed checkpoint of torch (DCP): a folder of `.distcp` files with a catalogue, as FSDP and others save.

Every piece is a whole file of torch.save inside a `.distcp` file, and is read like one: nothing is run. Only headers
are read until a tensor's bytes are asked for, and of those only the pieces that are needed.
"""

from __future__ import annotations

from math import prod
from pathlib import Path

from vitconv.errors import BadFile, UsageError
from vitconv.io.contents import Contents, some
from vitconv.io.dcp_catalogue import Catalogue, Entry, Piece, read_catalogue
from vitconv.io.dcp_piece import Place, locate, member_of, number_or_text
from vitconv.io.file import File
from vitconv.io.gather import gather
from vitconv.io.segment import Segment, read_at
from vitconv.io.source import Checkpoint
from vitconv.io.tensor import ITEMSIZE, Blob, Stored
from vitconv.io.training_state import is_training_state
from vitconv.io.zipdir import Member

CATALOGUE = ".metadata"
FORMAT = "torch-distributed"
# In the values of a checkpoint that vitconv wrote: its metadata.
OWN = "vitconv"
_MAX_CATALOGUE = 1 << 30
_MAX_VALUES = 4096
_MAX_VALUE = 1 << 20
_SAMPLE = 256


class Distributed(Checkpoint):
    """A distributed checkpoint, open for reading; see `Checkpoint`."""

    def __init__(self, folder: Path, files: dict[str, File], catalogue: Catalogue, contents: Contents) -> None:
        super().__init__(folder, FORMAT, list(files.values()), [contents], ())
        self._by_name = files
        self._entries = catalogue.tensors
        self._located: dict[Piece, Place] = {}
        self._whole: tuple[str, memoryview] | None = None

    def segment(self, stored: Stored) -> Segment | None:
        """Return the byte range of a file that is exactly this tensor, or None when it lies in pieces."""
        entry = self._entries[str(stored.blob.member)]
        if len(entry.pieces) != 1:
            return None
        place = self._locate(entry, entry.pieces[0])
        if place.strides is not None:
            return None
        return Segment(self._by_name[entry.pieces[0].file].fd, place.at, stored.nbytes)

    def damaged(self) -> list[str]:
        """Return the pieces of weights that are not what the checksums in them say; every byte is read."""
        from vitconv.io.checksums import damaged

        members: dict[str, list[Member]] = {}
        for entry in self._entries.values():
            for piece in entry.pieces if not is_training_state(entry.path) else ():
                members.setdefault(piece.file, []).append(member_of(self._by_name[piece.file], entry, piece))
        return [name for file, held in members.items() for name in damaged(self._by_name[file].fd, held)]

    def zero_pieces(self, stored: Stored) -> list[str]:
        """Return the files whose piece of a tensor holds nothing but zero bytes."""
        entry = self._entries[str(stored.blob.member)]
        found = []
        for piece in entry.pieces:
            place, fd = self._locate(entry, piece), self._by_name[piece.file].fd
            ends = (place.at, place.at + place.nbytes // 2, place.at + max(0, place.nbytes - _SAMPLE))
            samples = (read_at(fd, at, min(_SAMPLE, place.at + place.nbytes - at)) for at in ends)
            if any(sample.strip(b"\0") for sample in samples):
                continue
            if not read_at(fd, place.at, place.nbytes).strip(b"\0"):
                found.append(piece.file)
        return found

    def _locate(self, entry: Entry, piece: Piece) -> Place:
        place = self._located.get(piece)
        if place is None:
            place = self._located[piece] = locate(self._by_name[piece.file], entry, piece)
        return place

    def _piece(self, entry: Entry, piece: Piece) -> memoryview:
        """Return the bytes of a whole piece in C order."""
        place, width = self._locate(entry, piece), ITEMSIZE[entry.dtype]
        fd = self._by_name[piece.file].fd
        if place.strides is None:
            return memoryview(read_at(fd, place.at, prod(piece.sizes) * width))
        view = Stored(entry.path, entry.dtype, piece.sizes, Blob(0, 0, place.nbytes), 0, place.strides)
        return gather(view, read_at(fd, place.at, place.nbytes))

    def _bytes(self, stored: Stored, start: int, stop: int) -> bytes | bytearray:
        """Return bytes [start, stop) of a tensor, reading only the pieces that lie there."""
        name = str(stored.blob.member)
        entry = self._entries[name]
        if start == stop:
            return b""
        if not _in_rows(entry):
            return bytes(self._assembled(name, entry)[start:stop])
        out = bytearray(stop - start)
        width = ITEMSIZE[entry.dtype]
        row = prod(entry.shape[1:]) * width
        for piece in entry.pieces:
            first = piece.offsets[0] * row if entry.shape else 0
            low, high = max(start, first), min(stop, first + prod(piece.sizes) * width)
            if low >= high:
                continue
            place = self._locate(entry, piece)
            if place.strides is None:
                part: bytes | memoryview = read_at(self._by_name[piece.file].fd, place.at + low - first, high - low)
            else:
                part = self._piece(entry, piece)[low - first : high - first]
            out[low - start : high - start] = part
        return out

    def _assembled(self, name: str, entry: Entry) -> memoryview:
        """Return a tensor that is cut along several axes, whole; the last one is kept."""
        if self._whole is None or self._whole[0] != name:
            import numpy as np

            kind = np.dtype(f"u{ITEMSIZE[entry.dtype]}")
            whole = np.empty(entry.shape, kind)
            for piece in entry.pieces:
                box = tuple(slice(o, o + n) for o, n in zip(piece.offsets, piece.sizes, strict=True))
                whole[box] = np.frombuffer(self._piece(entry, piece), kind).reshape(piece.sizes)
            self._whole = (name, memoryview(whole.reshape(-1).view("u1").data))
        return self._whole[1]


def _in_rows(entry: Entry) -> bool:
    """Say whether the tensor is cut along its outermost axis only, as FSDP does."""
    return all(piece.sizes[1:] == entry.shape[1:] for piece in entry.pieces)


def open_dcp(folder: Path) -> Distributed:
    """Open the folder of a distributed checkpoint.

    Raises:
        BadFile: the catalogue is damaged, or weights are missing, in part or altogether.
        UsageError: it cannot be read.
    """
    where = folder / CATALOGUE
    source = File(where)
    try:
        if source.size == 0 or source.size > _MAX_CATALOGUE:
            raise BadFile(f"{where}: the catalogue has {source.size} bytes; the save did not finish. Save it again")
        raw = source.read(0, source.size)
    finally:
        source.close()
    catalogue = read_catalogue(raw, str(where))
    notes = _without_lost(folder, catalogue)
    files: dict[str, File] = {}
    try:
        names = [piece.file for entry in catalogue.tensors.values() for piece in entry.pieces]
        names += [piece.file for piece in catalogue.values.values()]
        for name in dict.fromkeys(names):
            files[name] = _opened(folder / name)
        tensors = [
            Stored(entry.path, entry.dtype, entry.shape, Blob(0, 0, prod(entry.shape) * ITEMSIZE[entry.dtype], name))
            for name, entry in catalogue.tensors.items()
        ]
        scalars = _values(catalogue, files, notes)
        metadata = {path[1]: str(value) for path, value in scalars.items() if path[0] == OWN and len(path) == 2}
        scalars = {path: value for path, value in scalars.items() if path[0] != OWN}
        contents = Contents(FORMAT, tensors, metadata, scalars, catalogue.foreign, tuple(notes), raw)
        return Distributed(folder, files, catalogue, contents)
    except BaseException:
        for file in files.values():
            file.close()
        raise


def _opened(path: Path) -> File:
    try:
        return File(path)
    except UsageError as error:
        if "Too many open files" in str(error):
            raise UsageError(f"{error}; raise the limit of open files (ulimit -n) and try again") from error
        raise


def _without_lost(folder: Path, catalogue: Catalogue) -> list[str]:
    """Refuse weights whose files are missing or too short; leave out such parts of a training state, and say so."""
    have = {entry.name: entry.stat().st_size for entry in folder.iterdir() if entry.is_file()}
    faults: dict[str, list[str]] = {}
    left: list[str] = []
    notes: list[str] = []
    for why, keys in catalogue.faults.items():
        for key in keys:
            faults.setdefault(why, []).append(key)
    total = sum(have.values())
    for name, entry in list(catalogue.tensors.items()):
        if prod(entry.shape) * ITEMSIZE[entry.dtype] > total:
            raise BadFile(f"{folder}: {some([name])} would take more room than all files have; it is damaged")
        why = next(filter(None, (_lost(piece, have) for piece in entry.pieces)), "")
        if not why:
            continue
        if is_training_state(entry.path):
            del catalogue.tensors[name]
            left.append(name)
        else:
            faults.setdefault(why, []).append(name)
    for path, piece in list(catalogue.values.items()):
        if _lost(piece, have):
            del catalogue.values[path]
    if faults:
        lines = "; ".join(f"{len(keys)} tensors ({some(keys)}): {why}" for why, keys in faults.items())
        raise BadFile(
            f"{folder}: shards are missing or damaged, so the weights are not whole: {lines[:1500]}. Fetch the files"
            " of all ranks, or save the checkpoint again"
        )
    if left:
        notes.append(f"{len(left)} tensors of training state are left out, their shards are missing: {some(left)}")
    return notes


def _lost(piece: Piece, have: dict[str, int]) -> str:
    if piece.file not in have:
        return f"{piece.file} is missing"
    if piece.at + piece.nbytes > have[piece.file]:
        return f"{piece.file} is cut short ({have[piece.file]} bytes)"
    return ""


def _values(catalogue: Catalogue, files: dict[str, File], notes: list[str]) -> dict[tuple[str, ...], object]:
    found: dict[tuple[str, ...], object] = {}
    small = {path: piece for path, piece in catalogue.values.items() if piece.nbytes <= _MAX_VALUE}
    if len(small) > _MAX_VALUES:
        notes.append(f"{len(small)} values beside the tensors were not read")
        return found
    for path, piece in small.items():
        known, value = number_or_text(files[piece.file], piece)
        if known:
            found[path] = value
    return found
