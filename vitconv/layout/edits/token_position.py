"""Position rows of the prefix tokens: added to the tokens themselves, and the way back that is chosen among many.

A class token and its position row are only ever added to each other, so one tensor can hold their sum; code that adds
positions to patches only (timm's `no_embed_class`, big_vision, register models) holds that sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vitconv.errors import Refused, UsageError
from vitconv.layout.edits.edit import Edit, Param, Values, without
from vitconv.layout.network import Applied, Cell, Made, Network

TOKENS = ("cls", "dist", "reg")


def _tokens(text: str) -> tuple[str, ...]:
    parts = tuple(text.split("+"))
    if not parts or any(p not in TOKENS for p in parts) or len(set(parts)) < len(parts):
        raise ValueError(f"{', '.join(TOKENS)}, joined by +")
    return parts


def _fold(network: Network, values: Values) -> Network:
    rows = values.get("tokens") or tuple(t for t in TOKENS if f"embed.pos_{t}" in network.cells)
    absent = [t for t in rows if f"embed.pos_{t}" not in network.cells]
    if not rows or absent:
        which = ", ".join(f"embed.pos_{t}" for t in absent or TOKENS)
        raise UsageError(f"--edit fold-cls-position: this network has no {which}; nothing is there to fold")
    alone = [t for t in rows if f"embed.{t}" not in network.cells]
    if alone:
        raise Refused(
            f"--edit fold-cls-position: embed.pos_{alone[0]} has no token embed.{alone[0]} to be added to; a row"
            f" without its token can only be left out: --edit drop:embed.pos_{alone[0]}"
        )
    same = all(network.cells[f"embed.{t}"].dtype == network.cells[f"embed.pos_{t}"].dtype for t in rows)
    for t in rows:
        network = network.with_made(f"embed.{t}", _sum(network.cells[f"embed.{t}"], network.cells[f"embed.pos_{t}"]))
    gone = tuple(f"embed.pos_{t}" for t in rows)
    what = " and ".join(f"embed.{t} += embed.pos_{t}" for t in rows) + ", the sum that the forward pass makes"
    if not same:
        what += ", rounded to the token's dtype"
    applied = Applied("fold-cls-position", what, True, gone, (), "the token's gradient goes to both")
    return without(network, gone).noted(applied)


def _sum(token: Cell, row: Cell) -> Made:
    def compute(x: Sequence[Any]) -> Any:
        return x[0] + x[1]

    def back(_: Sequence[Any], grad: Any) -> Sequence[Any]:
        return grad, grad

    return Made("token plus its position row", (token, row), token.shape, token.dtype, compute, back)


def _unfold(network: Network, values: Values) -> Network:
    rows = values.get("tokens") or ("cls",)
    alone = [f"embed.{t}" for t in rows if f"embed.{t}" not in network.cells]
    if alone:
        raise UsageError(f"--edit unfold-cls-position: this network has no {', '.join(alone)}")
    there = [f"embed.pos_{t}" for t in rows if f"embed.pos_{t}" in network.cells]
    if there:
        raise UsageError(f"--edit unfold-cls-position: {', '.join(there)} is there already")
    for t in rows:
        network = network.with_made(f"embed.pos_{t}", _zeros(network.cells[f"embed.{t}"]))
    added = tuple(f"embed.pos_{t}" for t in rows)
    what = f"{' and '.join(added)} = 0, chosen among all splits of the same sum; the tokens stay as they are"
    applied = Applied("unfold-cls-position", what, True, (), added, "the token's gradient; the row is a constant")
    return network.noted(applied)


def _zeros(token: Cell) -> Made:
    def compute(_: Sequence[Any]) -> Any:
        import numpy as np

        return np.zeros(token.shape, np.float64 if token.dtype == "F64" else np.float32)

    return Made("position row of zero", (), token.shape, token.dtype, compute)


FOLD_CLS_POSITION = Edit(
    name="fold-cls-position",
    title="add the position rows of class, distillation and register tokens to the tokens",
    exact="yes: the same addition, made once and for all",
    adjoint="the token's gradient goes to token and row",
    params=(Param("tokens", "cls, dist, reg, joined by +", _tokens, otherwise="all that have a row"),),
    apply=_fold,
)

UNFOLD_CLS_POSITION = Edit(
    name="unfold-cls-position",
    title="give tokens a position row of zero",
    exact="yes; not unique, zero is chosen, so that folding again gives the same token bit for bit",
    adjoint="the token's gradient; the row is a constant",
    params=(Param("tokens", "cls, dist, reg, joined by +", _tokens, otherwise="cls"),),
    apply=_unfold,
    example="unfold-cls-position:tokens=cls+dist",
)
