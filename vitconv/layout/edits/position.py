"""The position table on another grid, by a rule that is named."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from vitconv.errors import Refused, UsageError
from vitconv.layout.edits.edit import Edit, Param, Values, choice, pair, show, sized
from vitconv.layout.edits.interpolate import RULES, pull_back_grid, resize_grid
from vitconv.layout.network import Applied, Cell, Made, Network

NAME = "embed.pos"
JOIN = "--edit {}: the position table is a sum over rows and columns; say --edit join-position first"


def _apply(network: Network, values: Values) -> Network:
    target: tuple[int, int] = values["to"]
    if "embed.pos_y" in network.cells:
        raise Refused(JOIN.format("resize-position"))
    if NAME not in network.cells:
        raise UsageError(f"--edit resize-position: this network has no position table ({NAME})")
    source = source_grid(network, values.get("from"), "resize-position")
    network, said = resized(network, source, target, values.get("rule"), "resize-position")
    facts: dict[str, Any] = {"grid": target}
    what = f"position table {said}"
    p, q = network.sizes.get("p"), network.sizes.get("q")
    if p and q:
        facts["image_size"] = (target[0] * p, target[1] * q)
        what += f"; images are now {show(facts['image_size'])} pixels"
    prefix = [n for n in ("embed.pos_cls", "embed.pos_dist", "embed.pos_reg") if n in network.cells]
    if prefix:
        what += f"; {', '.join(prefix)} untouched"
    exact = source == target
    adjoint = "the identity" if exact else "the transpose of the interpolation"
    return sized(network, facts).noted(Applied("resize-position", what, exact, (), (), adjoint))


def source_grid(network: Network, told: tuple[int, int] | None, edit: str) -> tuple[int, int]:
    """Return the grid of the position table, as told or as known; a square is suggested, never assumed.

    Raises:
        Refused: the grid is not known, or does not have the table's number of rows.
    """
    n = network.cells[NAME].shape[0]
    grid = told or network.facts.grid
    if grid is None:
        side = math.isqrt(n)
        square = f"{side}x{side}" if side * side == n else "HxW"
        note = "if it is square" if side * side == n else f"{n} is not a square"
        raise Refused(
            f"--edit {edit}: the position table has {n} rows, and nothing says on which grid; say"
            f" --set grid={square} ({note})"
        )
    if math.prod(grid) != n:
        raise Refused(
            f"--edit {edit}: a grid of {show(grid)} has {math.prod(grid)} places, the position table {n} rows; say"
            " --set grid=HxW with the grid it was trained on"
        )
    return grid


def resized(
    network: Network, source: tuple[int, int], target: tuple[int, int], rule: str | None, edit: str
) -> tuple[Network, str]:
    """Return the network with its position table on the grid `target`, and what was done in words.

    Raises:
        Refused: no rule is told and none is known of the source.
    """
    rule = rule or network.facts.position_resize
    if source == target:
        return network, f"is on the grid {show(source)} already and stays as it is"
    if rule is None:
        rules = "; ".join(f"{name} ({r.title})" for name, r in RULES.items())
        raise Refused(f"--edit {edit}: libraries resize positions in different ways; say rule=NAME: {rules}")
    network = network.with_made(NAME, _made(network.cells[NAME], source, target, rule))
    said = f"resized from {show(source)} to {show(target)} by {rule} ({RULES[rule].title})"
    return sized(network, n=math.prod(target)), said


def _made(cell: Cell, source: tuple[int, int], target: tuple[int, int], rule: str) -> Made:
    def compute(x: Sequence[Any]) -> Any:
        return resize_grid(x[0], source, target, rule)

    def back(_: Sequence[Any], grad: Any) -> Sequence[Any]:
        return (pull_back_grid(grad, source, target, rule),)

    label = f"resized {show(source)} -> {show(target)}, {rule}"
    return Made(label, (cell,), (math.prod(target), cell.shape[1]), cell.dtype, compute, back)


RESIZE_POSITION = Edit(
    name="resize-position",
    title="interpolate the position table to another grid; rows of class, distillation and register tokens stay",
    exact="no",
    adjoint="the transpose of the interpolation",
    params=(
        Param("to", "the new grid in patches, height x width, as 16x16", pair, required=True),
        Param(
            "rule", f"one of {', '.join(RULES)}", choice(*RULES), otherwise="the fact position_resize, else asked for"
        ),
        Param("from", "the grid of the table", pair, otherwise="the fact grid, else asked for"),
    ),
    apply=_apply,
    bare="to",
    example="resize-position:to=16x16,rule=bicubic-antialias",
)
