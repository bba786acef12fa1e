"""Faults that the run itself shows: they are not put into the reference ViT, but seen where they happen."""

from __future__ import annotations

from collections.abc import Iterator

from vitconv.parity.faults.fault import Fault
from vitconv.parity.faults.precision import HALVES


def _halves() -> Iterator[Fault]:
    for short, dtype in HALVES.items():
        title = f"it runs under an autocast of its own to {dtype}"
        yield Fault(f"autocast-inside-{short}", title, "precision", "watched")
        title = f"parts of it compute in {dtype} by casts of their own"
        yield Fault(f"half-inside-{short}", title, "precision", "watched")


FAULTS = (
    Fault(
        "blocks-order",
        "blocks run in another order than they are numbered, or some of them twice",
        "block",
        "watched",
    ),
    Fault("batch-mixed", "the output of an image depends on the others in its batch", "block", "watched"),
    *_halves(),
)
