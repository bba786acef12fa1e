"""Sets of weights whose names are not whole, as some averages are kept: put back from another set of the file."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from vitconv.io.contents import some

if TYPE_CHECKING:
    from vitconv.io.envelope import Branch
    from vitconv.io.tensor import Stored

# Shapes of fewer tensors may be the same in this order by chance.
_FEWEST = 4


def only_numbers(branch: Branch) -> bool:
    """Say whether the keys are positions in a list, which no network has."""
    return all(key.isdigit() for key in branch.tensors)


def with_names(branch: Branch, found: list[Branch]) -> Branch:
    """Return the branch with whole names in its keys, where another set of the file says what they were.

    LitEma takes the dots out; NeMo, torch_ema and diffusers keep a list in the order of the network's parameters.
    """
    others = [other for other in found if other is not branch and not only_numbers(other)]
    if only_numbers(branch):
        # A list of a pickle: the last part of a tensor's path is its place.
        real = len(branch.tensors) >= _FEWEST and all(t.path[-1:] == (key,) for key, t in branch.tensors.items())
        for other in others if real else ():
            names = _in_order(list(branch.tensors.values()), other.tensors)
            if names:
                note = f"a list without names, given those of {other.name}, whose shapes are the same in this order"
                return _named(branch, dict(zip(branch.tensors, names, strict=True)), note)
    elif not any("." in key for key in branch.tensors):
        for other in others:
            dotted = {key.replace(".", ""): key for key in other.tensors}
            if len(dotted) == len(other.tensors) and all(
                key in dotted and other.tensors[dotted[key]].shape == stored.shape
                for key, stored in branch.tensors.items()
            ):
                note = f"its keys lack their dots, which were put back as in {other.name}"
                return _named(branch, {key: dotted[key] for key in branch.tensors}, note)
    return branch


def list_line(branch: Branch, found: list[Branch]) -> str:
    """Say what a list of tensors is, for which no other set has the names; "" for any other branch."""
    if not only_numbers(branch) or len(branch.tensors) < 2:
        return ""
    others = [f"{other.name} ({len(other.tensors)} tensors)" for other in found if not only_numbers(other)]
    beside = f"the shapes of {some(others)} are others, or in another order" if others else "no set with names is there"
    return (
        f"a list of {len(branch.tensors)} tensors without names, as NeMo, torch_ema and diffusers keep averages:"
        f" they go by the order of the network's parameters, and {beside}. Load the list with the code that"
        " wrote it, and save the network's state dict"
    )


def _named(branch: Branch, names: dict[str, str], note: str) -> Branch:
    tensors = {names[key]: stored for key, stored in branch.tensors.items()}
    return replace(branch, tensors=tensors, note=f"{branch.note}; {note}" if branch.note else note)


def _in_order(listed: list[Stored], named: dict[str, Stored]) -> list[str]:
    """Return the names of the tensors of a list: of all that the other set has, or of those that hold floats."""
    floats = [key for key, stored in named.items() if stored.dtype[0] in "FB" and stored.dtype != "BOOL"]
    for names in (list(named), floats):
        if [named[key].shape for key in names] == [stored.shape for stored in listed]:
            return names
    return []
