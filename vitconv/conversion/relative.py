"""What a stored index of relative positions proves: the grid of patches, which a table of offsets may leave open."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from vitconv.errors import Refused
from vitconv.io.tensor import Stored
from vitconv.layout.match import Match
from vitconv.layout.semantics import Semantics


def proven_by_index(
    match: Match, facts: Semantics, stored: Mapping[str, Stored], read: Callable[[Stored], Any]
) -> tuple[Semantics, list[str]]:
    """Fill in the grid that a stored index is made for.

    Raises:
        Refused: another grid was told.
    """
    key = next((key for key, const in match.consts.items() if const.value == "class-index"), None)
    if key is None or stored[key].dtype != "I64":
        return facts, []
    import numpy as np

    from vitconv.layout.token_buffers import class_index, grids_of

    index = np.frombuffer(read(stored[key]), "<i8").reshape(stored[key].shape)
    grid = next((g for g in grids_of(index) if np.array_equal(index, class_index(*g))), None)
    # An index of no grid is told where constants are compared.
    if grid is None or facts.grid == grid:
        return facts, []
    said = f"{grid[0]}x{grid[1]}"
    if facts.grid is not None:
        raise Refused(f"grid={facts.grid[0]}x{facts.grid[1]} was said, and the stored index ({key}) is of {said}")
    return facts.filled({"grid": grid}), [f"grid: {said}, which the stored index is of"]
