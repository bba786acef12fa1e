"""The directory of a zip file, read strictly, so that the bytes of stored members can be addressed in place.

Layout: PKWARE APPNOTE 6.3.10, sections 4.3.7 (local header), 4.3.12 (central directory), 4.3.14 to 4.3.16 (ends).
"""

from __future__ import annotations

import struct

from vitconv.errors import BadFile
from vitconv.io.file import File
from vitconv.record import dataclass

_END = b"PK\x05\x06"
_END64 = b"PK\x06\x06"
_LOCATOR64 = b"PK\x06\x07"
_ENTRY = b"PK\x01\x02"
_LOCAL = b"PK\x03\x04"
_MAX_DIRECTORY = 64 << 20
_FULL32 = 0xFFFFFFFF
_STORED, _DEFLATED = 0, 8


@dataclass(frozen=True)
class Member:
    """Name a member: `packed` bytes at `offset` of the file, `nbytes` when inflated."""

    name: str
    offset: int
    packed: int
    nbytes: int
    crc: int
    deflated: bool


@dataclass(frozen=True)
class _Entry:
    name: str
    header: int
    packed: int
    nbytes: int
    crc: int
    method: int


def read_directory(file: File) -> dict[str, Member]:
    """List the members by name, in the order of the directory; folders are left out.

    Raises:
        BadFile: the directory is missing or damaged, members overlap or share a name, or are encrypted or packed by
            another method than deflate.
    """
    start, size, count = _find_directory(file)
    entries = _entries(file, file.read(start, size), count)
    members: dict[str, Member] = {}
    position = 0
    for entry in sorted(entries, key=lambda entry: entry.header):
        data = _data_offset(file, entry)
        if entry.header < position:
            raise BadFile(f"{file.path}: members of the zip overlap at {entry.name!a:.80}; it is damaged or hostile")
        position = data + entry.packed
        if position > start:
            raise BadFile(f"{file.path}: zip member {entry.name!a:.80} reaches beyond the data; it is damaged")
        deflated = entry.method == _DEFLATED
        if not deflated and entry.packed != entry.nbytes:
            raise BadFile(f"{file.path}: zip member {entry.name!a:.80} states two different sizes")
        members[entry.name] = Member(entry.name, data, entry.packed, entry.nbytes, entry.crc, deflated)
    return {entry.name: members[entry.name] for entry in entries if not entry.name.endswith("/")}


def _find_directory(file: File) -> tuple[int, int, int]:
    tail_start = max(0, file.size - 22 - 0xFFFF)
    tail = file.read(tail_start, file.size - tail_start)
    at = tail.rfind(_END)
    if at < 0 or len(tail) - at < 22:
        raise BadFile(
            f"{file.path}: the zip directory at the end is missing; the file is cut short ({file.size} bytes are there)"
        )
    disk, _, _, count, size, start, _ = struct.unpack_from("<4H2LH", tail, at + 4)
    end = tail_start + at
    locator = file.read(max(0, end - 20), min(end, 20))
    # torch writes the record for large files always, and repeats in it what the short one says.
    if locator.startswith(_LOCATOR64):
        end, count, size, start = _find_directory64(file, locator)
    if disk not in (0, 0xFFFF):
        raise BadFile(f"{file.path}: a zip in several parts cannot be read; join it first")
    if start + size != end or size > _MAX_DIRECTORY:
        raise BadFile(f"{file.path}: the zip directory is not where it should be; the file is damaged")
    return start, size, count


def _find_directory64(file: File, locator: bytes) -> tuple[int, int, int, int]:
    (at,) = struct.unpack_from("<Q", locator, 8)
    record = file.read(at, 56)
    if not record.startswith(_END64):
        raise BadFile(f"{file.path}: the zip directory for large files is damaged")
    count, size, start = struct.unpack_from("<3Q", record, 32)
    return at, count, size, start


def _entries(file: File, raw: bytes, count: int) -> list[_Entry]:
    entries: list[_Entry] = []
    names: set[str] = set()
    position = 0
    while position < len(raw):
        if raw[position : position + 4] != _ENTRY or position + 46 > len(raw):
            raise BadFile(f"{file.path}: the zip directory is damaged at entry {len(entries)}")
        flags, method = struct.unpack_from("<2H", raw, position + 8)
        crc, packed, nbytes, name_size, extra_size, comment_size = struct.unpack_from("<3L3H", raw, position + 16)
        (header,) = struct.unpack_from("<L", raw, position + 42)
        extra_at = position + 46 + name_size
        name = raw[position + 46 : extra_at].decode("utf-8", "replace")
        extra = raw[extra_at : extra_at + extra_size]
        if _FULL32 in (packed, nbytes, header):
            packed, nbytes, header = _extra64(file, extra, packed, nbytes, header)
        if flags & 0x41:
            raise BadFile(f"{file.path}: zip member {name!a:.80} is encrypted")
        if method not in (_STORED, _DEFLATED):
            raise BadFile(f"{file.path}: zip member {name!a:.80} is packed by method {method}; only deflate is read")
        if name in names:
            raise BadFile(f"{file.path}: two zip members are called {name!a:.80}; it is damaged or hostile")
        names.add(name)
        entries.append(_Entry(name, header, packed, nbytes, crc, method))
        position = extra_at + extra_size + comment_size
    if len(entries) != count or position != len(raw):
        raise BadFile(f"{file.path}: the zip directory lists {len(entries)} members, {count} are promised")
    return entries


def _extra64(file: File, extra: bytes, packed: int, nbytes: int, header: int) -> tuple[int, int, int]:
    position = 0
    while position + 4 <= len(extra):
        kind, size = struct.unpack_from("<2H", extra, position)
        if kind == 1:
            values = list(struct.unpack_from(f"<{min(size, len(extra) - position - 4) // 8}Q", extra, position + 4))
            wanted = [value == _FULL32 for value in (nbytes, packed, header)]
            if len(values) >= sum(wanted):
                nbytes = values.pop(0) if wanted[0] else nbytes
                packed = values.pop(0) if wanted[1] else packed
                header = values.pop(0) if wanted[2] else header
                return packed, nbytes, header
        position += 4 + size
    raise BadFile(f"{file.path}: a zip entry for a large member is damaged")


def _data_offset(file: File, entry: _Entry) -> int:
    local = file.read(entry.header, 30)
    if not local.startswith(_LOCAL):
        raise BadFile(f"{file.path}: zip member {entry.name!a:.80} is not where the directory says; it is damaged")
    name_size, extra_size = struct.unpack_from("<2H", local, 26)
    return entry.header + 30 + int(name_size) + int(extra_size)
