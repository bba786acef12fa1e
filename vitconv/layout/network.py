"""A network while it is being carried: canonical tensors, each with the place its elements come from."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any

from vitconv.errors import LayoutError
from vitconv.layout.match import Match
from vitconv.layout.recipe import View, Views, dense_view, part_shape
from vitconv.layout.semantics import Semantics
from vitconv.record import dataclass

FLOATS = ("F64", "F32", "F16", "BF16")


@dataclass(frozen=True)
class Cell:
    """One canonical tensor: its shape, its dtype, and the view its elements come from.

    The view is of a tensor in the file, or of a computed one, whose name then begins with "=".
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    view: View

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True, eq=False)
class Made:
    """A tensor that is computed, not moved.

    `compute` takes the inputs as float arrays of their shapes (float64 for F64, else float32) and returns one of
    `shape`, which is then rounded to `dtype`, to nearest even. `pull_back` takes the inputs and the gradient with
    respect to the result and returns the gradients with respect to the inputs; None when there is none. `overflow`
    says what becomes of results past the largest finite value of `dtype`: "refuse" them, or let them be "inf".
    """

    label: str
    inputs: tuple[Cell, ...]
    shape: tuple[int, ...]
    dtype: str
    compute: Callable[[Sequence[Any]], Any]
    pull_back: Callable[[Sequence[Any], Any], Sequence[Any]] | None = None
    overflow: str = "refuse"


@dataclass(frozen=True)
class Applied:
    """What an edit did.

    Attributes:
        edit: its name.
        what: one sentence with the figures.
        exact: True when the function computed is unchanged in real arithmetic.
        removed / added: canonical names.
        adjoint: how gradients go back, or "none".
    """

    edit: str
    what: str
    exact: bool
    removed: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    adjoint: str = "the same permutation"


@dataclass(frozen=True)
class Network:
    """Canonical tensors, sizes and facts, and the edits made so far."""

    cells: Mapping[str, Cell]
    made: Mapping[str, Made]
    sizes: Mapping[str, int]
    depth: int
    facts: Semantics
    log: tuple[Applied, ...] = ()
    open: Mapping[str, Any] = field(default_factory=dict)

    def with_made(self, name: str, made: Made) -> Network:
        """Return a copy in which the canonical tensor `name` is computed."""
        tag = f"={name}#{len(self.made)}"
        cell = Cell(name, made.shape, made.dtype, dense_view(tag, made.shape))
        return dataclasses.replace(self, cells={**self.cells, name: cell}, made={**self.made, tag: made})

    def without(self, names: Sequence[str]) -> Network:
        """Return a copy without the canonical tensors `names`."""
        gone = set(names)
        return dataclasses.replace(self, cells={n: c for n, c in self.cells.items() if n not in gone})

    def noted(self, applied: Applied) -> Network:
        """Return a copy whose log has one more entry."""
        return dataclasses.replace(self, log=(*self.log, applied))

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """{canonical name: shape}."""
        return {n: c.shape for n, c in self.cells.items()}


def decode(match: Match, dtypes: Mapping[str, str], facts: Semantics) -> Network:
    """Return the network that a matched file holds; nothing is read.

    Args:
        match: how the source dialect explains the file.
        dtypes: {key: dtype} of the file.
        facts: what is known beside the tensors; facts the variant implies are added where they are single-valued.

    Raises:
        LayoutError: two tensors of the file claim one canonical name.
    """
    cells: dict[str, Cell] = {}
    views = Views(match.sizes)
    for b in match.bound:
        for j, name in enumerate(b.parts):
            if name in cells:
                raise LayoutError(f"both {cells[name].view.tensor} and {b.key} hold {name}")
            shape = part_shape(b, j, match.sizes)
            # A table of no rows is how some libraries say that there is none.
            if 0 not in shape:
                cells[name] = Cell(name, shape, dtypes[b.key], views.of(b, j))
    for t in match.variant.ties:
        for layer in range(match.depth):
            of = cells.get(t.of.replace("{i}", str(layer)))
            if of is not None:
                names = [part.replace("{i}", str(layer)) for part in t.parts]
                cells |= {name: dataclasses.replace(of, name=name) for name in names}
    implied, maybe = match.variant.implies, match.variant.maybe
    for doubt in match.dialect.doubts:
        if doubt.about(cells):
            maybe = maybe | {k: (*_several(maybe.get(k, implied.get(k, ()))), *v) for k, v in doubt.maybe.items()}
    single = {k: v for k, v in implied.items() if not isinstance(v, tuple) and k not in maybe}
    several = {k: v for k, v in implied.items() if isinstance(v, tuple)} | maybe
    return Network(cells, {}, match.sizes, match.depth, facts.filled(single), (), several)


def _several(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)
