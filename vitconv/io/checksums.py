"""The checksums that a zip keeps of its members, compared with the bytes that are there."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable

from vitconv.errors import BadFile
from vitconv.io.threads import in_threads
from vitconv.io.zipdir import Member

_PIECE = 256 << 10


def damaged(fd: int, members: Iterable[Member]) -> list[str]:
    """Return the names of stored members whose bytes are not those the zip's checksum is of.

    Packed members are not looked at here: inflating them compares.
    """
    found: list[str] = []

    def check(member: Member) -> None:
        crc, offset, left = 0, member.offset, member.nbytes
        while left:
            piece = os.pread(fd, min(left, _PIECE), offset)
            if not piece:
                raise BadFile(f"the file ends inside of zip member {member.name!a:.80}; it is cut short or was changed")
            crc = zlib.crc32(piece, crc)
            offset += len(piece)
            left -= len(piece)
        if crc != member.crc:
            found.append(member.name)

    stored = [m for m in members if not m.deflated]
    in_threads(check, stored)
    names = set(found)
    return [m.name for m in stored if m.name in names]
