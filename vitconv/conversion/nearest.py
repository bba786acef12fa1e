"""Which reading of a branch to speak of when no layout explains any: the one whose names are best known."""

from __future__ import annotations

from collections.abc import Mapping

from vitconv.conversion.readings import readings
from vitconv.errors import shown
from vitconv.io.envelope import Branch
from vitconv.layout.dialect import Dialect
from vitconv.layout.header import Header
from vitconv.layout.layer_names import renamed
from vitconv.layout.match import closest

# Further ones are parts of parts.
_LOOKED_AT = 12
# Tensors of a file that is looked at with its layers renamed; further ones make it a file of several networks.
_WHOLE = 2000


def nearest(branch: Branch, dialects: list[Dialect], given: Mapping[str, int]) -> Branch:
    """Return the reading of which some dialect explains the most tensors; the branch itself when none is better."""
    if not dialects:
        return branch
    asked: list[tuple[Dialect, Mapping[str, str]]] = [(dialect, {}) for dialect in dialects]
    best, most = branch, -1
    whole = Header({k: t.shape for k, t in branch.tensors.items()})
    # Layers alone under a prefix are no reading of a file whose other names are known as they stand.
    if len(branch.tensors) <= _WHOLE and (other := renamed(dialects, whole, given)) and other.match.fits:
        return branch
    for count, reading in enumerate(readings(branch, ())):
        if count == _LOOKED_AT:
            break
        # Who asks about a file is not helped by the closest to a small part of it.
        if 2 * len(reading.tensors) < len(branch.tensors):
            continue
        match = closest(asked, Header({k: t.shape for k, t in reading.tensors.items()}), given)
        explained = len(reading.tensors) - len(match.unknown) if match.bound else 0
        if explained > most and (reading is branch or 2 * explained >= len(reading.tensors)):
            best, most = reading, explained
    return best


def without(branch: Branch, reading: Branch) -> str:
    """Return a line on what was taken off the keys that a message names, or nothing."""
    off = "".join(step.text for step in reading.steps[len(branch.steps) :] if step.kind == "prefix")
    return f"\n  (the keys are named without {shown(off)!r} before them)" if off else ""
