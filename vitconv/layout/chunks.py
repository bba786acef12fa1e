"""Blocks in chunks, `blocks.{chunk}.{i}`, as DINOv2's training keeps them for FSDP; the second number runs through.

Source: facebookresearch/dinov2, dinov2/models/vision_transformer.py, b8931f7, `block_chunks`: a chunk holds depth //
block_chunks blocks, the last one what is left.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from vitconv.errors import Refused
from vitconv.layout.encode import Encoding

# What `--axis` calls their number.
CHUNKS = "chunks"
_CHUNKED = re.compile(r"(?:^|\.)blocks\.(\d+)\.(\d+)\.")


def chunks_of(keys: Iterable[str]) -> int:
    """Return the `block_chunks` whose names these keys have, 0 where none has a block in a chunk."""
    where = {(m[1], m[2]) for key in keys if (m := _CHUNKED.search(key))}
    if not where:
        return 0
    first = [chunk for chunk, _ in where]
    return len(where) // max(map(first.count, first))


def in_chunks(said: Encoding, depth: int, count: int) -> Encoding:
    """Return an encoding with its blocks named in so many chunks, 0 for none.

    Raises:
        Refused: the layout names no blocks in chunks, or there are more chunks than blocks.
    """
    dialect = said.variant.dialect
    if not count:
        return said
    if not dialect.chunked or count > depth:
        why = f"{depth} blocks do not fill {count}" if dialect.chunked else "it names no blocks so"
        raise Refused(f"{dialect.name} cannot be written with its blocks in chunks ({CHUNKS}={count}): {why}")
    size, path = depth // count, dialect.chunked
    bound = tuple(
        b if b.layer is None else replace(b, key=b.key.replace(path, f"{path}{b.layer // size}.", 1))
        for b in said.bound
    )
    return replace(said, bound=bound)
