"""Read what torch.save and torch.jit.save write since torch 1.6: a zip with a pickle and the raw storages.

Layout: repository pytorch/pytorch, `torch/serialization.py` and `caffe2/serialize/inline_container.h`.
"""

from __future__ import annotations

from vitconv.errors import BadFile
from vitconv.io.allowed import check
from vitconv.io.called import called_notes
from vitconv.io.collect import collect
from vitconv.io.contents import Contents
from vitconv.io.file import File
from vitconv.io.inflate import inflate
from vitconv.io.records import External
from vitconv.io.tensor import ITEMSIZE, Blob
from vitconv.io.torch_tensors import Storage, UnreadableError, storage_dtype
from vitconv.io.unpickle import unpickle
from vitconv.io.zipdir import Member

_PICKLE = "data.pkl"
_MAX_PICKLE = 256 << 20
_MAX_INFLATED = 64 << 20


def find_pickle(members: dict[str, Member]) -> str | None:
    """Return the name of the member that describes the checkpoint, or None when the zip is none of torch's."""
    found = [name for name in members if name == _PICKLE or name.endswith(f"/{_PICKLE}")]
    return min(found, key=lambda name: (name.count("/"), name), default=None)


def read(file: File, members: dict[str, Member]) -> Contents:
    """Read names, dtypes, shapes and places of the tensors.

    Raises:
        BadFile: damaged, hostile, big-endian, or with tensors of a kind that cannot be read.
    """
    name = find_pickle(members)
    if name is None:
        raise BadFile(f"{file.path}: the zip holds no {_PICKLE}, so it is no torch file")
    root = name[: -len(_PICKLE)]
    twins = [other for other in members if other.endswith(f"/{_PICKLE}") and other.count("/") == name.count("/")]
    if len(twins) > 1:
        raise BadFile(f"{file.path}: the zip holds several torch files ({', '.join(sorted(twins)[:4])}); take it apart")
    script = f"{root}constants.pkl" in members
    _check_order(file, members.get(f"{root}byteorder"))
    raw = _small_member(file, members[name], _MAX_PICKLE)
    done = unpickle(raw, f"{file.path}: {name!a:.80}")
    foreign = check(done.globals, str(file.path))

    def find_storage(external: External) -> Storage:
        dtype, key, numel = storage_parts(external)
        member = members.get(f"{root}data/{key}")
        if member is None:
            raise UnreadableError(f"its data, zip member data/{str(key)[:40]!a}, are missing (damaged)")
        size = numel * ITEMSIZE[dtype]
        if size > member.nbytes:
            raise UnreadableError(f"its storage has {member.nbytes} bytes of {size} (damaged)")
        if member.deflated:
            return Storage(Blob(0, 0, size, member.name), dtype)
        return Storage(Blob(0, member.offset, size), dtype)

    found = collect(done.root, find_storage, str(file.path), len(raw))
    return Contents(
        "torchscript" if script else "torch-zip",
        found.stored(),
        scalars=found.scalars,
        foreign=foreign,
        notes=(*called_notes(done.called), *found.notes),
        header=raw,
        members=members,
        memory=tuple(found.memory.pieces),
    )


def read_root(file: File, members: dict[str, Member]) -> object:
    """Return what the pickle of a torch file describes, as inert records.

    Raises:
        BadFile: there is none, or it is damaged or hostile.
    """
    name = find_pickle(members)
    if name is None:
        raise BadFile(f"{file.path}: the zip holds no {_PICKLE}, so it is no torch file")
    done = unpickle(_small_member(file, members[name], _MAX_PICKLE), f"{file.path}: {name!a:.80}")
    check(done.globals, str(file.path))
    return done.root


def storage_parts(external: External) -> tuple[str, str, int]:
    """Return the dtype, key and number of elements of a storage's persistent id.

    Raises:
        UnreadableError: it is not the id of a storage.
    """
    pid = external.pid
    if not isinstance(pid, tuple) or len(pid) < 5 or pid[0] != "storage":
        raise UnreadableError("its storage is not described as torch describes one")
    dtype, key, numel = storage_dtype(pid[1]), pid[2], pid[4]
    if not isinstance(key, str) or type(numel) is not int or not 0 <= numel < 1 << 60:
        raise UnreadableError("its storage is described by wrong values")
    return dtype, key, numel


def _small_member(file: File, member: Member, limit: int) -> bytes:
    if member.nbytes > (_MAX_INFLATED if member.deflated else limit):
        raise BadFile(
            f"{file.path}: zip member {member.name!a:.80} has {member.nbytes} bytes, far more than any such has"
        )
    if member.deflated:
        return bytes(inflate(file.fd, member, 0, member.nbytes))
    return file.read(member.offset, member.nbytes)


def _check_order(file: File, member: Member | None) -> None:
    if member is None:
        return
    order = _small_member(file, member, 64).strip()
    if order != b"little":
        raise BadFile(
            f"{file.path}: written on a machine of byte order {order[:16]!a}; only little-endian files are read. Load"
            " it with torch and save it again on a little-endian machine"
        )
