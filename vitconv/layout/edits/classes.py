"""Another number of classes, without a silent new start: what the new rows hold is said by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vitconv.errors import UsageError
from vitconv.layout.edits.edit import Edit, Param, Values, choice, count, sized
from vitconv.layout.network import Applied, Cell, Made, Network

HOW = ("keep-first", "zeros")
HEADS = ("head.weight", "head.bias", "head_dist.weight", "head_dist.bias")


def _apply(network: Network, values: Values) -> Network:
    classes: int = values["classes"]
    how: str = values["how"]
    present = [n for n in HEADS if n in network.cells]
    if not present:
        raise UsageError(
            "--edit change-classes: this network has no classifier; make one with"
            f" --edit fill:head.weight=0,head.bias=0,o={classes}"
        )
    before = network.cells[present[0]].shape[0]
    kept = 0 if how == "zeros" else min(before, classes)
    if kept == before == classes:
        what = f"{classes} classes already; nothing changed"
        return network.noted(Applied("change-classes", what, True, adjoint="the identity"))
    for name in present:
        network = network.with_made(name, _rows(network.cells[name], classes, kept))
    what = (
        f"{before} classes become {classes} in {', '.join(present)}: the first {kept} rows kept,"
        f" {before - kept} lost, {classes - kept} new ones of zeros"
    )
    adjoint = f"the gradients of the first {kept} rows; zero for the others"
    return sized(network, o=classes).noted(Applied("change-classes", what, False, (), (), adjoint))


def _rows(cell: Cell, classes: int, kept: int) -> Made:
    def compute(x: Sequence[Any]) -> Any:
        import numpy as np

        out = np.zeros((classes, *cell.shape[1:]), x[0].dtype)
        out[:kept] = x[0][:kept]
        return out

    def back(_: Sequence[Any], grad: Any) -> Sequence[Any]:
        import numpy as np

        out = np.zeros(cell.shape, grad.dtype)
        out[:kept] = grad[:kept]
        return (out,)

    label = f"first {kept} of {cell.shape[0]} classes kept, of {classes}"
    return Made(label, (cell,), (classes, *cell.shape[1:]), cell.dtype, compute, back)


CHANGE_CLASSES = Edit(
    name="change-classes",
    title="give the classifiers (head, head_dist) another number of classes",
    exact="no; kept rows keep their logits bit for bit",
    adjoint="gradients of the kept rows",
    params=(
        Param("classes", "the new number", count, required=True),
        Param("how", "keep-first: old rows in place, new ones zero; zeros: all rows zero", choice(*HOW), required=True),
    ),
    apply=_apply,
    example="change-classes:classes=100,how=zeros",
)
