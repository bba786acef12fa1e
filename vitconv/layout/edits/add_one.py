"""Norm weights that are stored less one, as `layernorm_zero_centered_gamma` of Megatron-LM keeps them: one is added."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vitconv.errors import UsageError
from vitconv.layout.canonical import role_of
from vitconv.layout.edits.edit import Edit, Values
from vitconv.layout.match import collapse
from vitconv.layout.network import Applied, Cell, Made, Network


def _apply(network: Network, _: Values) -> Network:
    norms = [n for n in network.cells if role_of(n) == "norm.weight"]
    if not norms:
        raise UsageError("--edit add-one-to-norms: this network has no norm weights")
    for name in norms:
        network = network.with_made(name, _plus_one(network.cells[name]))
    what = f"one added to {', '.join(collapse(norms))}, which are stored less one"
    return network.noted(Applied("add-one-to-norms", what, True, (), (), "the identity"))


def _plus_one(cell: Cell) -> Made:
    def compute(x: Sequence[Any]) -> Any:
        return x[0] + x[0].dtype.type(1)

    def back(_: Sequence[Any], grad: Any) -> Sequence[Any]:
        return (grad,)

    return Made("one added", (cell,), cell.shape, cell.dtype, compute, back)


ADD_ONE = Edit(
    name="add-one-to-norms",
    title="add one to norm weights that are stored less one (layernorm_zero_centered_gamma)",
    exact="yes in real arithmetic, for weights that are stored so",
    adjoint="the identity",
    params=(),
    apply=_apply,
)
