"""Weights are floats: integers, booleans and complex numbers under a weight's name are something else."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from vitconv.errors import Refused, UsageError
from vitconv.io.envelope import Branch
from vitconv.io.tensor import Stored
from vitconv.layout.match import Match, collapse

_SIXTEEN = ("U16", "I16")


def with_bits(branch: Branch, bits: str | None) -> Branch:
    """Return the branch with its 16-bit integers taken for the bits of the float dtype that was told.

    Raises:
        UsageError: another word than BF16 or F16, or no 16-bit integers.
    """
    if bits is None:
        return branch
    if bits not in ("BF16", "F16"):
        raise UsageError(f"--set from.bits={bits}: expected BF16 or F16")
    change = [k for k, t in branch.tensors.items() if t.dtype in _SIXTEEN]
    if not change:
        raise UsageError(f"--set from.bits={bits}: no tensor here is of 16-bit integers")
    tensors = {k: dataclasses.replace(t, dtype=bits) if k in set(change) else t for k, t in branch.tensors.items()}
    note = f"{len(change)} tensors of 16-bit integers are taken for the bits of {bits}, as was told"
    return dataclasses.replace(branch, tensors=tensors, note="; ".join(x for x in (branch.note, note) if x))


def check_floats(match: Match, stored: Mapping[str, Stored]) -> None:
    """Refuse a network some of whose weights are no floats.

    Raises:
        Refused: it names them, and says what they may be and what to do.
    """
    kinds: dict[str, list[str]] = {}
    for b in match.bound:
        dtype = stored[b.key].dtype
        if not dtype.startswith(("F", "BF")):
            kinds.setdefault(dtype, []).append(b.key)
    if not kinds:
        return
    lines = [f"{', '.join(collapse(keys)[:4])}: {dtype}, {_may_be(dtype)}" for dtype, keys in kinds.items()]
    raise Refused("weights are floats, and these are not:\n  " + "\n  ".join(lines))


def _may_be(dtype: str) -> str:
    if dtype in _SIXTEEN:
        return (
            "an integer dtype: raw bfloat16 bits, or quantised without its scale? --set from.bits=BF16 (or F16) takes"
            " them for the bits of floats"
        )
    if dtype == "BOOL":
        return "a mask and no weight: save the float weights"
    if dtype.startswith("C"):
        return "complex: save the real network that it belongs to"
    return "an integer dtype: quantised without its scale? dequantise before saving: the scale is not in this file"
