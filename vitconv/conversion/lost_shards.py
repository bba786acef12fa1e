"""Weights that are all zeros because a shard of a distributed checkpoint was lost, found before anything is written."""

from __future__ import annotations

from vitconv.conversion.stream import Sources
from vitconv.errors import Refused, shown


def check_lost(sources: Sources, *, allowed: bool) -> list[str]:
    """Look at every weight of a distributed checkpoint that is a matrix or more, piece by piece.

    A rank that saved before its parameters were gathered, or a load that fitted no name, leaves zeros that have the
    right shape. Norms, biases and tokens may well be zeros; whole matrices of a trained network are not, and pieces of
    one even less. Of each piece a few samples are read, and all of it only when these are zeros.

    Raises:
        Refused: such weights are there and `allowed` is False.
    """
    from vitconv.io.dcp import Distributed

    lost: dict[str, list[str]] = {}
    for name, (checkpoint, stored) in sources.where.items():
        if not isinstance(checkpoint, Distributed) or len(stored.shape) < 2 or not name.endswith("weight"):
            continue
        for file in checkpoint.zero_pieces(stored):
            lost.setdefault(file, []).append(shown(name))
    if not lost:
        return []
    lines = [f"{file}: {', '.join(names[:4])}{_more(names)}" for file, names in lost.items()]
    if allowed:
        return [f"weights that are all zeros were let pass: {'; '.join(lines)}"]
    raise Refused(
        "weights of this distributed checkpoint are all zeros, as a shard that was lost leaves them:\n  "
        + "\n  ".join(lines[:8])
        + "\nsave the checkpoint again, or say with --allow-zeros that they are meant"
    )


def _more(names: list[str]) -> str:
    return f" and {len(names) - 4} more" if len(names) > 4 else ""
