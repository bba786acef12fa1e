"""A folder that holds both shards with an index and a single file: which of them is meant?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitconv.errors import Ambiguous
from vitconv.io.contents import some

if TYPE_CHECKING:
    from vitconv.io.source import Checkpoint
    from vitconv.io.tensor import Stored

_PIECE = 4 << 20


def check_rival(shards: Checkpoint, single: Checkpoint) -> None:
    """Let the shards of an index count only when a single file beside them says nothing else.

    transformers reads the single file and never looks at the index; others read the index. Where both hold the same
    tensors it does not matter, and where they share no name the file is another part, such as a head.

    Raises:
        Ambiguous: they share names, and differ.
    """
    ours = {stored.path: stored for stored in shards.tensors}
    theirs = {stored.path: stored for stored in single.tensors}
    shared = ours.keys() & theirs.keys()
    if not shared:
        return
    odd = [path[-1] for path in sorted(ours.keys() ^ theirs.keys())]
    other = [path[-1] for path in sorted(shared) if not _same(shards, ours[path], single, theirs[path])]
    if odd or other:
        what = f"other data for {some(other)}" if other else f"not the same names ({some(odd)})"
        raise Ambiguous(
            f"{shards.path} holds two checkpoints: shards with an index, and {single.path.name} with {what}."
            f" transformers would read {single.path.name}, others the index: name the one that is meant,"
            f" {single.path} or the *.index.json beside it"
        )


def _same(a: Checkpoint, one: Stored, b: Checkpoint, two: Stored) -> bool:
    if (one.dtype, one.shape) != (two.dtype, two.shape):
        return False
    pieces = range(0, one.nbytes, _PIECE)
    return all(
        a.read_range(one, at, stop) == b.read_range(two, at, stop)
        for at in pieces
        for stop in (min(at + _PIECE, one.nbytes),)
    )
