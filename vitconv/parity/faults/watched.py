"""Faults that the run itself shows: they are not put into the reference ViT, but seen where they happen."""

from __future__ import annotations

from vitconv.parity.faults.fault import Fault

FAULTS = (
    Fault(
        "blocks-order",
        "blocks run in another order than they are numbered, or some of them twice",
        "block",
        "watched",
    ),
)
