"""The start of focused attention in CSwin, whose stripes become one map, and in a plain ViT, whose code has no layout.

Source: LeapLabTHU/FLatten-Transformer, models/flatten_cswin.py and config.py (CSWIN_LA_SPLIT_SIZE 56-28-14-7: the whole
map of every stage), a7f0a4b. Of the DeiT of Han et al., FLatten Transformer, 2023, no code is published.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vitconv.errors import Refused, UsageError
from vitconv.layout.edits.edit import Values, sized
from vitconv.layout.network import Applied, Cell, Made, Network

_ASKED = "--edit focus-attention"


def joined_stripes(network: Network, at: str) -> dict[str, Made]:
    """Return the positional convolution of the one branch of a focused block: the channels of both stripes, in order.

    Empty when the block has one branch already.
    """
    out = {}
    for part in ("lepe.weight", "lepe.bias"):
        cells = [network.cells[f"{at}b{j}.{part}"] for j in (0, 1) if f"{at}b{j}.{part}" in network.cells]
        if len(cells) == 2:
            out[f"{at}b0.{part}"] = _joined(cells)
    return out


def _joined(cells: list[Cell]) -> Made:
    rows = [c.shape[0] for c in cells]

    def compute(x: Sequence[Any]) -> Any:
        import numpy as np

        return np.concatenate(list(x))

    def back(_: Sequence[Any], grad: Any) -> Sequence[Any]:
        return (grad[: rows[0]], grad[rows[0] :])

    return Made("both stripes' channels", tuple(cells), (sum(rows), *cells[0].shape[1:]), cells[0].dtype, compute, back)


def focus_plain(network: Network, values: Values) -> Network:
    """Say that a plain ViT attends by focused attention, in the formulation of FLatten's code.

    Raises:
        UsageError: parameters of networks of stages.
        Refused: keys or values that the formulation has no place for.
    """
    foreign = sorted(set(values) - {"power"})
    if foreign:
        raise UsageError(f"{_ASKED}: {', '.join(foreign)}: of networks of stages; a plain one has power alone")
    names = network.shapes
    odd = [
        n for n in names if n.endswith((".attn.q_norm.weight", ".attn.k_norm.weight", ".rel_pos", ".attn.norm.weight"))
    ]
    if odd or "rel_pos" in names:
        raise Refused(f"{_ASKED}: focused attention has no norms of queries and keys and no relative positions")
    facts: dict[str, Any] = {"attention": "focused-upstream-fix", "focusing_factor": values.get("power", 3.0)}
    what = (
        f"focused linear attention in all {network.depth} blocks; {len(names)} tensors are carried as they are (100 %"
        " of the parameters); new are none: scale and position table stay at FLatten's zero, the depthwise filter, for"
        " which no layout of plain networks has a place, is left out; a warm start for training, not the same function"
    )
    adjoint = "the same permutation"
    return sized(network, facts).noted(Applied("focus-attention", what, False, (), (), adjoint))
