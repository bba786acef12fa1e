"""Read what torch.save wrote before torch 1.6: five pickles in a row, then the raw storages.

Layout: repository pytorch/pytorch, `torch/serialization.py`, function `_legacy_save`. Other pickles, without torch's
mark at their start, are read for the numpy arrays in them.
"""

from __future__ import annotations

from vitconv.errors import BadFile
from vitconv.io.allowed import check
from vitconv.io.called import called_notes
from vitconv.io.collect import collect
from vitconv.io.contents import Contents
from vitconv.io.file import File
from vitconv.io.records import External, Global, Mapping, Unpickled
from vitconv.io.tensor import ITEMSIZE, Blob
from vitconv.io.torch_tensors import Storage, UnreadableError
from vitconv.io.torch_zip import storage_parts
from vitconv.io.unpickle import Truncated, unpickle

_MAGIC = 0x1950A86A20F9469CFC6C
_PROTOCOL = 1001
_FIRST_WINDOW = 1 << 20
_MAX_PICKLE = 256 << 20


def read(file: File) -> Contents:
    """Read names, dtypes, shapes and places of the tensors.

    Raises:
        BadFile: damaged, hostile, big-endian, or with tensors of a kind that cannot be read.
    """
    pickles, raw = _pickles(file)
    foreign = check([found for done in pickles for found in done.globals], str(file.path))
    if len(pickles) == 1:
        return _plain_pickle(file, pickles[0], raw, foreign)
    _, protocol, system, body, keys = pickles
    order = system.root.get("little_endian") if isinstance(system.root, Mapping) else None
    if protocol.root != _PROTOCOL or order is not True:
        raise BadFile(f"{file.path}: of another protocol than {_PROTOCOL}, or not little-endian; it cannot be read")
    places = _places(file, body, keys)

    def find_storage(external: External) -> Storage:
        dtype, key, _ = storage_parts(external)
        if key not in places:
            raise UnreadableError(f"its data, storage {key[:40]!a}, are missing (damaged)")
        blob = places[key]
        part = external.pid[5] if isinstance(external.pid, tuple) and len(external.pid) > 5 else None
        return Storage(blob if part is None else _part(blob, part, ITEMSIZE[dtype]), dtype)

    found = collect(body.root, find_storage, str(file.path), body.end)
    return Contents(
        "torch-legacy",
        found.stored(),
        scalars=found.scalars,
        foreign=foreign,
        notes=(*called_notes(name for done in pickles for name in done.called), *found.notes),
        header=raw[: keys.end],
        memory=tuple(found.memory.pieces),
    )


def _pickles(file: File) -> tuple[list[Unpickled], bytes]:
    """Read the pickles at the start of the file, in a window that grows until they fit."""
    window = min(_FIRST_WINDOW, file.size)
    while True:
        raw = file.read(0, window)
        try:
            done = [unpickle(raw, str(file.path))]
            if done[0].root == _MAGIC:
                for _ in range(4):
                    done.append(unpickle(raw, str(file.path), done[-1].end))
        except Truncated:
            if window in (file.size, _MAX_PICKLE):
                raise
            window = min(window * 4, file.size, _MAX_PICKLE)
            continue
        return done, raw


def _places(file: File, body: Unpickled, keys: Unpickled) -> dict[str, Blob]:
    """Return where each storage lies: they follow the pickles in the order of the keys, each after its length."""
    dtypes: dict[str, str] = {}
    for external in body.externals:
        if isinstance(external.pid, tuple) and external.pid[:1] == ("module",):
            continue
        try:
            dtype, key, _ = storage_parts(external)
        except UnreadableError as error:
            raise BadFile(f"{file.path}: a tensor cannot be read: {error}") from error
        dtypes[key] = dtype
    if not isinstance(keys.root, list) or not all(isinstance(key, str) for key in keys.root):
        raise BadFile(f"{file.path}: the list of storages is damaged")
    places: dict[str, Blob] = {}
    position = keys.end
    for key in keys.root:
        if key not in dtypes or key in places:
            raise BadFile(
                f"{file.path}: storage {key[:40]!a} is listed but not described, or listed twice; it is damaged"
            )
        size = int.from_bytes(file.read(position, 8), "little", signed=True) * ITEMSIZE[dtypes[key]]
        if size < 0 or position + 8 + size > file.size:
            raise BadFile(f"{file.path}: storage {key[:40]!a} reaches beyond the file; it is cut short or damaged")
        places[key] = Blob(0, position + 8, size)
        position += 8 + size
    return places


def _part(blob: Blob, part: object, itemsize: int) -> Blob:
    """Return the stretch of a storage that a view of it names: (key, first element, number of elements)."""
    if not isinstance(part, tuple) or len(part) != 3:
        raise UnreadableError("a view of its storage is described by wrong values")
    _, start, size = part
    if type(start) is not int or type(size) is not int or start < 0 or size < 0:
        raise UnreadableError("a view of its storage is described by wrong values")
    if (start + size) * itemsize > blob.nbytes:
        raise UnreadableError("a view of its storage reaches outside it (damaged)")
    return Blob(blob.file, blob.offset + start * itemsize, size * itemsize)


def _plain_pickle(file: File, done: Unpickled, raw: bytes, foreign: tuple[str, ...]) -> Contents:
    def find_storage(_: External) -> Storage:
        raise UnreadableError("its storage lies outside the pickle (save it with torch.save)")

    found = collect(done.root, find_storage, str(file.path), done.end)
    if not found.tensors:
        modules = sorted({name.module for name in done.globals if isinstance(name, Global)})
        of = f" (it names {', '.join(modules[:3])})" if modules else ""
        raise BadFile(f"{file.path}: a pickle without torch's mark and without any array{of:.200}; not a checkpoint")
    return Contents(
        "pickle",
        found.stored(),
        scalars=found.scalars,
        foreign=foreign,
        notes=(*called_notes(done.called), *found.notes),
        header=raw[: done.end],
        memory=tuple(found.memory.pieces),
    )
