"""Every edit by its name, and how a list of them is read and applied."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vitconv.errors import UsageError
from vitconv.layout.edits.add_one import ADD_ONE
from vitconv.layout.edits.cast import CAST
from vitconv.layout.edits.channels import CHANGE_CHANNELS
from vitconv.layout.edits.classes import CHANGE_CLASSES
from vitconv.layout.edits.deepnorm import FOLD_DEEPNORM
from vitconv.layout.edits.drop import DROP
from vitconv.layout.edits.edit import Edit
from vitconv.layout.edits.fill import FILL
from vitconv.layout.edits.focus import FOCUS_ATTENTION
from vitconv.layout.edits.join_position import JOIN_POSITION
from vitconv.layout.edits.layer_scale import FOLD_LAYER_SCALE
from vitconv.layout.edits.make_position import MAKE_POSITION
from vitconv.layout.edits.patch import RESIZE_PATCH
from vitconv.layout.edits.position import RESIZE_POSITION
from vitconv.layout.edits.token_position import FOLD_CLS_POSITION, UNFOLD_CLS_POSITION
from vitconv.layout.edits.window import RESIZE_WINDOW
from vitconv.layout.network import Network

EDITS: Mapping[str, Edit] = {
    e.name: e
    for e in (
        DROP,
        FILL,
        FOLD_CLS_POSITION,
        UNFOLD_CLS_POSITION,
        JOIN_POSITION,
        MAKE_POSITION,
        FOLD_LAYER_SCALE,
        FOLD_DEEPNORM,
        ADD_ONE,
        RESIZE_POSITION,
        RESIZE_PATCH,
        CHANGE_CHANNELS,
        CHANGE_CLASSES,
        RESIZE_WINDOW,
        FOCUS_ATTENTION,
        CAST,
    )
}


@dataclass(frozen=True)
class Asked:
    """One edit with the values of its parameters."""

    edit: Edit
    values: Mapping[str, Any]

    def __call__(self, network: Network) -> Network:
        """Return the edited network."""
        return self.edit.apply(network, self.values)


def parse_edit(text: str) -> Asked:
    """Read one `NAME[:key=value,...]` as given to `--edit`.

    Raises:
        UsageError: an unknown name or parameter, or a value of the wrong kind; the message lists what exists.
    """
    name, _, rest = text.strip().partition(":")
    edit = EDITS.get(name.strip())
    if edit is None:
        near = difflib.get_close_matches(name, EDITS, 1)
        guess = f"; did you mean {near[0]}?" if near else ""
        raise UsageError(f"--edit {text}: no edit is called {name!r}; there are: {', '.join(EDITS)}{guess}")
    return Asked(edit, edit.read(rest, text))


def apply_all(network: Network, asked: Sequence[str]) -> Network:
    """Apply edits, each as `NAME[:key=value,...]`, in the order given.

    All texts are read before the first edit is made.

    Raises:
        UsageError: see `parse_edit`; an edit does not fit this network.
        Refused: an edit needs a fact that is not known, or would have to guess.
    """
    for edit in [parse_edit(text) for text in asked]:
        network = edit(network)
    return network


def describe_edits() -> list[dict[str, str]]:
    """Return one row per edit: name, what it does, parameters, whether it is exact, adjoint, an example."""
    return [
        {
            "edit": e.name,
            "does": e.title,
            "parameters": e.usage(),
            "exact": e.exact,
            "adjoint": e.adjoint,
            "example": f"--edit {e.example or e.name}",
        }
        for e in EDITS.values()
    ]
