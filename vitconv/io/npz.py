"""Read the arrays of a .npz file in place: a zip of .npy files.

Layout: numpy's own description, `numpy/lib/format.py`. The header is matched against the one form that numpy writes, so
that nothing in it is evaluated.
"""

from __future__ import annotations

import re

from vitconv.errors import BadFile
from vitconv.io.contents import Contents, some
from vitconv.io.file import File
from vitconv.io.inflate import inflate
from vitconv.io.numpy_values import DTYPES, NotNumbersError
from vitconv.io.tensor import ITEMSIZE, Blob, Stored, c_strides
from vitconv.io.torch_tensors import UnreadableError, sizes, view
from vitconv.io.zipdir import Member

_MAGIC = b"\x93NUMPY"
_MAX_HEADER = 64 << 10
_HEADER = re.compile(
    r"\{'descr': (?P<descr>'[^']*'|\[[^\]]*\]), 'fortran_order': (?P<fortran>True|False),"
    r" 'shape': \((?P<shape>[0-9L, ]*)\),? *\}\s*"
)


def read(file: File, members: dict[str, Member]) -> Contents:
    """Read names, dtypes, shapes and places of the arrays.

    Raises:
        BadFile: no zip of arrays, or arrays of objects, of texts, or big-endian.
    """
    arrays = {name: member for name, member in members.items() if name.endswith(".npy")}
    if not arrays:
        # Here, since it is only for refusals.
        from vitconv.io.foreign_zip import what_it_is

        raise BadFile(f"{file.path}: {what_it_is(members)}")
    headers: list[bytes] = []
    tensors: list[Stored] = []
    faults: dict[str, list[str]] = {}
    bfloats: list[str] = []
    texts: list[str] = []
    for name, member in arrays.items():
        try:
            header, start = _header(file, member)
            headers.append(header)
            stored, void = _array(name.removesuffix(".npy"), member, header, start)
        except NotNumbersError:
            texts.append(name)
            continue
        except UnreadableError as error:
            faults.setdefault(str(error), []).append(name)
            continue
        tensors.append(stored)
        if void:
            bfloats.append(stored.key)
    if faults:
        problems = [f"{some(names)}: {why}" for why, names in faults.items()]
        raise BadFile(f"{file.path}: arrays that cannot be read: {'; '.join(problems)[:1500]}")
    notes = [f"2-byte void arrays were read as bfloat16: {some(bfloats)}"] if bfloats else []
    notes += [f"left out, being texts or dates: {some(texts)}"] if texts else []
    others = [name for name in members if name not in arrays]
    notes += [f"not read, being no arrays: {some(others)}"] if others else []
    return Contents("npz", tensors, notes=tuple(notes), header=b"".join(headers), members=members)


def _bytes(file: File, member: Member, start: int, stop: int) -> bytes:
    stop = min(stop, member.nbytes)
    if start >= stop:
        return b""
    if member.deflated:
        return bytes(inflate(file.fd, member, start, stop))
    return file.read(member.offset + start, stop - start)


def _header(file: File, member: Member) -> tuple[bytes, int]:
    """Return the header text of an array and where its data start."""
    head = _bytes(file, member, 0, 4096)
    if len(head) < 12 or not head.startswith(_MAGIC) or head[6] not in (1, 2, 3):
        raise UnreadableError("no numpy array, or damaged")
    width = 2 if head[6] == 1 else 4
    length = int.from_bytes(head[8 : 8 + width], "little")
    start = 8 + width + length
    if length > _MAX_HEADER or start > member.nbytes:
        raise UnreadableError("its header is longer than the array; it is damaged")
    if start > len(head):
        head = _bytes(file, member, 0, start)
    return head[8 + width : start], start


def _array(key: str, member: Member, header: bytes, start: int) -> tuple[Stored, bool]:
    match = _HEADER.fullmatch(header.decode("latin-1").strip() + " ")
    if match is None:
        raise UnreadableError("its header is damaged or not of the form that numpy writes")
    descr = match["descr"].strip("'")
    dtype = _dtype(descr)
    numbers = [part.strip().removesuffix("L") for part in match["shape"].split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) < 20 for part in numbers if part):
        raise UnreadableError("its shape is damaged")
    shape = sizes([int(part) for part in numbers if part])
    fortran = match["fortran"] == "True"
    strides = tuple(reversed(c_strides(shape[::-1]))) if fortran else c_strides(shape)
    nbytes = member.nbytes - start
    wanted = ITEMSIZE[dtype]
    for size in shape:
        wanted *= size
    if wanted != nbytes:
        raise UnreadableError("its size does not fit its shape; it is damaged")
    blob = Blob(0, start, nbytes, member.name) if member.deflated else Blob(0, member.offset + start, nbytes)
    found = view(dtype, shape, blob, 0, strides)
    return Stored((key,), found.dtype, found.shape, found.blob, found.start, found.strides), descr.endswith("V2")


def _dtype(descr: str) -> str:
    kind = descr.lstrip("<>|=")
    if kind.startswith("O"):
        raise UnreadableError("an array of objects, which only a pickle could hold (save plain arrays)")
    if kind[:1] in set("USMm"):
        raise NotNumbersError("an array of texts or dates")
    if kind not in DTYPES or descr[:1] == "[":
        raise UnreadableError(f"dtype {descr[:40]!a} is not supported")
    if descr.startswith(">") and ITEMSIZE[DTYPES[kind]] > 1:
        raise UnreadableError("big-endian (save it with .astype('<f4') or the like)")
    return DTYPES[kind]
