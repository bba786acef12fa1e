"""What a reader found in one file: the common result of all formats."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field
from typing import TYPE_CHECKING

from vitconv.io.tensor import Stored
from vitconv.record import dataclass

if TYPE_CHECKING:
    from vitconv.io.zipdir import Member


@dataclass(frozen=True)
class Contents:
    """List the tensors of one file (`Blob.file` is 0, or negative for `memory`), and what else it says."""

    format: str
    tensors: list[Stored]
    metadata: dict[str, str] = field(default_factory=dict)
    scalars: dict[tuple[str, ...], object] = field(default_factory=dict)
    foreign: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    header: bytes = b""
    members: dict[str, Member] = field(default_factory=dict)
    memory: tuple[bytes, ...] = ()


def some(names: Iterable[object], limit: int = 4) -> str:
    """Return the first few names for a message, in quotes and cut short, with a count of the others."""
    shown: list[str] = []
    more = 0
    for name in names:
        if len(shown) < limit:
            # Letters of any script stay as they are; what cannot be printed is escaped.
            text = repr(name) if isinstance(name, str) else str(name)
            shown.append(text if len(text) <= 100 else f"{text[:96]}...{text[-1:]}")
        else:
            more += 1
    return ", ".join(shown) + (f" and {more} more" if more else "")
