"""Inflate a stretch of a packed zip member, holding no more than the stretch and one piece in memory."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator

from vitconv.errors import BadFile
from vitconv.io.zipdir import Member

_PIECE = 256 << 10


def inflate(fd: int, member: Member, start: int, stop: int) -> bytearray:
    """Return bytes [start, stop) of the inflated member. The checksum is compared when all of it was passed.

    Raises:
        BadFile: the packed data are damaged, or give fewer or more bytes than the directory states.
    """
    found = bytearray()
    position = 0
    crc = 0
    for piece in _pieces(fd, member):
        crc = zlib.crc32(piece, crc)
        if position + len(piece) > start and position < stop:
            found += piece[max(0, start - position) : stop - position]
        position += len(piece)
        if position > member.nbytes:
            break
        if position >= stop and position < member.nbytes:
            return found
    if position != member.nbytes or crc != member.crc or len(found) != stop - start:
        raise BadFile(f"zip member {member.name!a:.80} is damaged: it does not inflate to what its checksum says")
    return found


def _pieces(fd: int, member: Member) -> Iterator[bytes]:
    machine = zlib.decompressobj(-15)
    offset, left = member.offset, member.packed
    pending = b""
    try:
        while not machine.eof:
            if not pending and left:
                pending = os.pread(fd, min(left, _PIECE), offset)
                offset += len(pending)
                left -= len(pending)
            if not pending:
                break
            piece = machine.decompress(pending, _PIECE)
            pending = machine.unconsumed_tail
            if piece:
                yield piece
        last = machine.flush() if not machine.eof else b""
        if last:
            yield last
    except zlib.error as error:
        raise BadFile(f"zip member {member.name!a:.80} cannot be inflated: {error}") from error
