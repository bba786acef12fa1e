"""A position table that is a sum of one over rows and one over columns, written out as a table over places.

The sum is what the forward pass makes; a table over places says more, so the way back exists for few tables.
Source: Dehghani et al., Patch n' Pack (NaViT), 2023, section 2.1, factorised positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vitconv.errors import UsageError
from vitconv.layout.edits.edit import Edit, Values, show, sized, without
from vitconv.layout.network import Applied, Cell, Made, Network

FACTORS = ("embed.pos_y", "embed.pos_x")


def _apply(network: Network, _: Values) -> Network:
    absent = [name for name in FACTORS if name not in network.cells]
    if absent:
        raise UsageError(f"--edit join-position: this network has no {' and no '.join(absent)} to add up")
    if "embed.pos" in network.cells:
        raise UsageError("--edit join-position: this network has a position table over places (embed.pos) already")
    y, x = (network.cells[name] for name in FACTORS)
    grid = (y.shape[0], x.shape[0])
    network = network.with_made("embed.pos", _sum(y, x))
    what = f"embed.pos = embed.pos_y + embed.pos_x on the grid {show(grid)}, the sum that the forward pass makes"
    if y.dtype != x.dtype:
        what += f", rounded to {y.dtype}"
    adjoint = "the gradient is summed over columns, and over rows"
    applied = Applied("join-position", what, True, FACTORS, ("embed.pos",), adjoint)
    return sized(without(network, FACTORS), {"grid": grid}, n=grid[0] * grid[1]).noted(applied)


def _sum(y: Cell, x: Cell) -> Made:
    rows, columns, d = y.shape[0], x.shape[0], y.shape[1]

    def compute(values: Sequence[Any]) -> Any:
        return (values[0][:, None] + values[1]).reshape(-1, d)

    def back(_: Sequence[Any], grad: Any) -> Sequence[Any]:
        places = grad.reshape(rows, columns, d)
        return places.sum(1), places.sum(0)

    return Made("positions of row plus column", (y, x), (rows * columns, d), y.dtype, compute, back)


JOIN_POSITION = Edit(
    name="join-position",
    title="write a position table that is a sum over rows and columns as one over places",
    exact="yes: the same addition, made once and for all",
    adjoint="the gradient summed over columns, and over rows",
    params=(),
    apply=_apply,
)
