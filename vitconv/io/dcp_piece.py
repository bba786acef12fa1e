"""One piece of a distributed checkpoint: a file of torch.save that lies inside another file."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from vitconv.errors import BadFile
from vitconv.io.collect import plain_or_none
from vitconv.io.contents import some
from vitconv.io.dcp_catalogue import Entry, Piece
from vitconv.io.file import File
from vitconv.io.tensor import ITEMSIZE, span
from vitconv.io.torch_zip import read, read_root
from vitconv.io.zipdir import Member, read_directory

_PROBE = 4 << 10


@dataclass(frozen=True, slots=True)
class Place:
    """Where the elements of a piece lie: `nbytes` bytes at `at` of its file, in C order or with strides."""

    at: int
    nbytes: int
    strides: tuple[int, ...] | None = None


class Window(File):
    """A stretch of an open file, read as if it were a file of its own. It is not closed: the file is another's."""

    def __init__(self, file: File, at: int, nbytes: int) -> None:
        self.path = file.path
        self.fd = file.fd
        self.size = nbytes
        self._file = file
        self._at = at

    def read(self, offset: int, nbytes: int) -> bytes:
        """Read exactly `nbytes` bytes at `offset` of the stretch."""
        if offset < 0 or nbytes < 0 or offset + nbytes > self.size:
            raise BadFile(f"{self.path}: a piece at byte {self._at} is damaged or cut short")
        return self._file.read(self._at + offset, nbytes)


def locate(file: File, entry: Entry, piece: Piece) -> Place:
    """Find the elements of a piece; only its header is read.

    Raises:
        BadFile: no tensor of the dtype and shape that the catalogue promises is there: never written, or damaged.
    """
    window = Window(file, piece.at, piece.nbytes)
    head = window.read(0, min(piece.nbytes, _PROBE))
    if not head.strip(b"\0"):
        raise BadFile(f"{file.path}: the shard of {some([entry.path[-1]])} was never written: all bytes there are 0")
    if not head.startswith(b"PK"):
        raise BadFile(f"{file.path}: no piece of a checkpoint where the catalogue says {some([entry.path[-1]])} is")
    contents = read(window, read_directory(window))
    if len(contents.tensors) != 1:
        raise BadFile(f"{file.path}: {len(contents.tensors)} tensors where {some([entry.path[-1]])} should be")
    stored = contents.tensors[0]
    if (stored.dtype, stored.shape) != (entry.dtype, piece.sizes):
        raise BadFile(
            f"{file.path}: {some([entry.path[-1]])} is {stored.dtype} {list(stored.shape)} there, the catalogue says"
            f" {entry.dtype} {list(piece.sizes)}; the files do not belong together"
        )
    if stored.blob.member is not None or stored.blob.file != 0:
        raise BadFile(f"{file.path}: {some([entry.path[-1]])} is packed; save it without stream transforms")
    width = ITEMSIZE[entry.dtype]
    at = piece.at + stored.blob.offset + stored.start * width
    if stored.contiguous:
        return Place(at, prod(piece.sizes) * width)
    return Place(at, span(stored.shape, stored.strides) * width, stored.strides)


def member_of(file: File, entry: Entry, piece: Piece) -> Member:
    """Return the zip member with the data of a piece, where it lies in the whole file, named for messages.

    Raises:
        BadFile: as `locate`.
    """
    place = locate(file, entry, piece)
    window = Window(file, piece.at, piece.nbytes)
    for member in read_directory(window).values():
        at = piece.at + member.offset
        if at <= place.at < at + max(member.nbytes, 1) and "/data/" in member.name:
            where = "" if len(entry.shape) == 0 else f" from {list(piece.offsets)}"
            return replace(member, name=f"{file.path.name}: {entry.path[-1]}{where}", offset=at)
    raise BadFile(f"{file.path}: {some([entry.path[-1]])} has no data there; it is damaged")


def number_or_text(file: File, piece: Piece) -> tuple[bool, object]:
    """Return (True, value) of a number, a text, or a list of them; (False, None) for anything else."""
    window = Window(file, piece.at, piece.nbytes)
    try:
        return plain_or_none(read_root(window, read_directory(window)))
    except BadFile:
        return False, None
