"""Write the fixed table of sines and cosines that a network's own code makes anew at every run, by a named rule.

The rules give different tables, and nothing in the tensors tells which is meant: none is taken by default.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vitconv.errors import Refused, UsageError
from vitconv.layout.edits.edit import Edit, Param, Values, choice, show, sized
from vitconv.layout.network import Applied, Made, Network
from vitconv.layout.sincos import KINDS, sincos

NAME = "embed.pos"


def _apply(network: Network, values: Values) -> Network:
    kind: str = values["rule"]
    held = [n for n in (NAME, "embed.pos_y", "rel_pos", "blocks.0.attn.rel_pos") if n in network.cells]
    if held:
        raise UsageError(f"--edit make-position: this network has positions already ({held[0]})")
    facts, d = network.facts, network.sizes["d"]
    if facts.position not in (None, "sincos"):
        raise Refused(
            f"--edit make-position: position={facts.position}, so no table of sines and cosines belongs to this"
            " network; say --set position=sincos if it does"
        )
    if facts.grid is None:
        raise Refused("--edit make-position: nothing says the grid of the patches; say --set grid=HxW")
    dtype = max((c.dtype for c in network.cells.values()), key=[c.dtype for c in network.cells.values()].count)
    network = network.with_made(NAME, _made(kind, facts.grid, d, dtype))
    known = facts.position == "sincos"
    what = f"{NAME} made for the grid {show(facts.grid)} by the rule of {kind} ({KINDS[kind]})"
    what += ", as the source's code does by that rule" if known else ""
    applied = Applied("make-position", what, known, (), (NAME,), "none: a constant has no source")
    n = facts.grid[0] * facts.grid[1]
    return sized(network, {"position": "sincos"}, n=n).noted(applied)


def _made(kind: str, grid: tuple[int, int], width: int, dtype: str) -> Made:
    def compute(_: Sequence[Any]) -> Any:
        import numpy as np

        return sincos(kind, grid, width).astype(np.float64 if dtype == "F64" else np.float32)

    return Made(f"sines and cosines of {kind}, grid {show(grid)}", (), (grid[0] * grid[1], width), dtype, compute)


MAKE_POSITION = Edit(
    name="make-position",
    title="write the fixed table of sines and cosines that the source's code makes anew",
    exact="yes if the source's code makes it by this rule, which is to be known",
    adjoint="none: a constant has no source",
    params=(Param("rule", f"one of {', '.join(KINDS)}", choice(*KINDS), required=True),),
    apply=_apply,
    bare="rule",
    example="make-position:rule=big-vision",
)
