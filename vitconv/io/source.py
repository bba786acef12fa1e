"""Open a checkpoint of any kind: what it holds is known from headers, and nothing in it is run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from vitconv.errors import BadFile, UsageError
from vitconv.io import incomplete, sniff
from vitconv.io.contents import Contents, some
from vitconv.io.file import File
from vitconv.io.folder import Place, find, find_distributed
from vitconv.io.segment import Segment, fill, map_pages, read_at
from vitconv.io.shards import check_index, common_format, find_twins, renumber
from vitconv.io.tensor import Stored, span

_MIN_ALLOWANCE = 16 << 20
# Below this, asking for the pages costs more than a copy.
_WORTH_MAPPING = 1 << 16


class Checkpoint:
    """A checkpoint, open for reading; a context manager.

    `tensors` are in file order; `scalars` holds the plain leaves of a pickle (numbers, texts, None, short lists) by
    path; `foreign` names what a pickle refers to beyond torch's own format, none of which was run; `ties` groups the
    paths of tensors that are the same bytes.
    """

    def __init__(
        self, path: Path, format_: str, files: list[File], parts: list[Contents], notes: Iterable[str]
    ) -> None:
        self.path = path
        self.format = format_
        self.files = tuple(file.path for file in files)
        self.tensors = tuple(stored for part in parts for stored in part.tensors)
        self.metadata: dict[str, str] = {}
        self.scalars: dict[tuple[str, ...], object] = {}
        for part in reversed(parts):
            self.metadata.update(part.metadata)
            self.scalars.update(part.scalars)
        self.foreign = tuple(sorted({name for part in parts for name in part.foreign}))
        self.notes = tuple(dict.fromkeys([*notes, *(note for part in parts for note in part.notes)]))
        self.ties = _ties(self.tensors)
        self._files = files
        self._headers = [part.header for part in parts]
        self._members = [part.members for part in parts]
        self._memory = [piece for part in parts for piece in part.memory]

    @property
    def digest(self) -> str:
        """Return the SHA-256 of the headers (safetensors) or pickles, in hexadecimal digits."""
        import hashlib

        digest = hashlib.sha256()
        for header in self._headers:
            digest.update(header)
        return digest.hexdigest()

    def damaged(self) -> list[str]:
        """Return the members of zip files that are not what the file's own checksum says; every byte is read."""
        from vitconv.io.checksums import damaged

        kept = zip(self._files, self._members, strict=True)
        return [name for file, members in kept if members for name in damaged(file.fd, members.values())]

    def segment(self, stored: Stored) -> Segment | None:
        """Return the byte range of a file that is exactly this tensor; None when it must be gathered or inflated."""
        blob = stored.blob
        if blob.file < 0 or blob.member is not None or not stored.contiguous:
            return None
        return Segment(self._files[blob.file].fd, blob.offset + stored.start * stored.itemsize, stored.nbytes)

    def read(self, stored: Stored) -> memoryview:
        """Return the bytes of a tensor in C order.

        Raises:
            BadFile: the file became shorter, or packed data are damaged.
        """
        if stored.contiguous:
            return memoryview(self.read_range(stored, 0, stored.nbytes))
        from vitconv.io.gather import gather

        first = stored.start * stored.itemsize
        return gather(stored, self._bytes(stored, first, first + span(stored.shape, stored.strides) * stored.itemsize))

    def read_into(self, stored: Stored, memory: memoryview) -> memoryview:
        """Return the bytes of a tensor in C order, in `memory` where they lie in the file as they are and fit in it.

        Reading many tensors into one memory is five times as fast as into new ones, whose pages come one by one.

        Raises:
            BadFile: the file became shorter, or packed data are damaged.
        """
        segment = self.segment(stored)
        if segment is None or segment.nbytes > len(memory):
            return self.read(stored)
        part = memory[: segment.nbytes]
        try:
            fill(segment.fd, part, segment.offset)
        except BadFile as error:
            raise BadFile(f"{self._files[stored.blob.file].path}: {some([stored.key])}: {error}") from error
        return part

    def mapped(self, stored: Stored) -> memoryview:
        """Return the bytes of a tensor in C order, as the file's own pages where they lie in it so.

        Nothing is copied, so looking once at every element takes half of reading it first. The memory is writable and
        its own: what is written stays in it. A file that another program cuts short while its pages are looked at ends
        the process, as it does with every mapping, so look at one tensor at a time.

        Raises:
            BadFile: the file became shorter, or packed data are damaged.
        """
        segment = self.segment(stored)
        if segment is None or segment.nbytes < _WORTH_MAPPING or segment.offset % stored.itemsize:
            return self.read(stored)
        try:
            return map_pages(segment)
        except BadFile as error:
            raise BadFile(f"{self._files[stored.blob.file].path}: {some([stored.key])}: {error}") from error

    def read_range(self, stored: Stored, start: int, stop: int) -> bytes:
        """Return bytes [start, stop) of a tensor in C order; only a strided one is held in memory whole.

        Raises:
            BadFile: the file became shorter, or packed data are damaged.
        """
        if not 0 <= start <= stop <= stored.nbytes:
            raise UsageError(f"{stored.key}: bytes {start} to {stop} of {stored.nbytes} do not exist")
        if not stored.contiguous:
            return bytes(self.read(stored)[start:stop])
        first = stored.start * stored.itemsize
        return bytes(self._bytes(stored, first + start, first + stop))

    def _bytes(self, stored: Stored, start: int, stop: int) -> bytes | bytearray:
        """Return bytes [start, stop) of a tensor's blob."""
        blob = stored.blob
        if start == stop:
            return b""
        if blob.file < 0:
            return self._memory[-1 - blob.file][blob.offset + start : blob.offset + stop]
        file = self._files[blob.file]
        try:
            if blob.member is not None:
                from vitconv.io.inflate import inflate

                member = self._members[blob.file][blob.member]
                return inflate(file.fd, member, blob.offset + start, blob.offset + stop)
            return read_at(file.fd, blob.offset + start, stop - start)
        except BadFile as error:
            raise BadFile(f"{file.path}: {some([stored.key])}: {error}") from error

    def close(self) -> None:
        """Close the files; a second call does nothing."""
        for file in self._files:
            file.close()

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_checkpoint(path: str | Path, *, ignore_index: bool = False) -> Checkpoint:
    """Open a file, an index of shards, or a folder that holds one checkpoint.

    Of an index and the files beside it the index counts, and must agree with what the files hold; `ignore_index` reads
    the files that are there instead.

    Raises:
        UsageError: there is no such file, or a folder holds several checkpoints.
        BadFile: it is damaged, incomplete, hostile, or of a kind that cannot be read.
    """
    folder = find_distributed(Path(path))
    if folder is not None:
        from vitconv.io.dcp import open_dcp

        return open_dcp(folder)
    place = find(Path(path), ignore_index=ignore_index)
    files: list[File] = []
    try:
        parts: list[Contents] = []
        for file_path in place.files:
            files.append(File(file_path))
            parts.append(_read(files[-1]))
        result = _join(Path(path), place, files, parts)
        _check_sizes(result.tensors, sum(file.size for file in files), str(path))
        incomplete.check(result.tensors, str(path))
    except BaseException:
        for file in files:
            file.close()
        raise
    return result


def _read(file: File) -> Contents:
    return _READERS[sniff.kind_of(file)](file)


def _read_zip(file: File) -> Contents:
    from vitconv.io import torch_zip, zipdir

    members = zipdir.read_directory(file)
    if torch_zip.find_pickle(members) is not None:
        return torch_zip.read(file, members)
    from vitconv.io import npz

    return npz.read(file, members)


def _read_safetensors(file: File) -> Contents:
    from vitconv.io import safetensors

    return safetensors.read(file)


def _read_pickle(file: File) -> Contents:
    from vitconv.io import torch_legacy

    return torch_legacy.read(file)


def _read_onnx(file: File) -> Contents:
    from vitconv.io import onnx

    return onnx.read(file)


_READERS: dict[str, Callable[[File], Contents]] = {
    "zip": _read_zip,
    "safetensors": _read_safetensors,
    "pickle": _read_pickle,
    "onnx": _read_onnx,
}


def _join(path: Path, place: Place, files: list[File], parts: list[Contents]) -> Checkpoint:
    format_ = common_format(path, place, parts)
    notes = [*place.notes]
    parts = renumber(parts)
    whole = Checkpoint(path, format_, files, parts, notes)
    if len(files) == 1 and place.index is None:
        return whole
    check_index(path, place, parts)
    if place.rival is not None:
        _check_rival(whole, place.rival)
    twins = find_twins(whole, place)
    if not twins:
        return whole
    notes.append(f"kept once, being the same in two files: {some('.'.join(stored.path) for stored in twins)}")
    left = [replace(part, tensors=[stored for stored in part.tensors if stored not in twins]) for part in parts]
    return Checkpoint(path, format_, files, left, notes)


def _check_rival(whole: Checkpoint, rival: Path) -> None:
    from vitconv.io.rival import check_rival

    with open_checkpoint(rival) as other:
        check_rival(whole, other)


def _check_sizes(tensors: Iterable[Stored], size: int, where: str) -> None:
    """Refuse views that repeat a few stored elements into something far larger than the file."""
    allowed = max(_MIN_ALLOWANCE, 4 * size)
    huge = [stored for stored in tensors if stored.nbytes > allowed and not stored.contiguous]
    if huge:
        raise BadFile(
            f"{where}: tensors that would take far more room than the file of {size} bytes has:"
            f" {some('.'.join(stored.path) for stored in huge)}; save them as they are stored, before .expand()"
        )


def _ties(tensors: Iterable[Stored]) -> tuple[tuple[tuple[str, ...], ...], ...]:
    """Group the paths of tensors that lie in the same place in the same way."""
    groups: dict[object, list[tuple[str, ...]]] = {}
    for stored in tensors:
        if stored.nbytes:
            form = stored.nbytes if stored.contiguous else (stored.shape, stored.strides)
            blob = stored.blob
            place = (blob.file, blob.offset, blob.nbytes, blob.member)
            groups.setdefault((place, stored.start, stored.dtype, form), []).append(stored.path)
    return tuple(tuple(paths) for paths in groups.values() if len(paths) > 1)
