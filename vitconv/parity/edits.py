"""Edits between the sides: weights carried through them, and gradients pulled back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vitconv.layout.edits import apply_all
from vitconv.layout.edits.compute import pull_back, value
from vitconv.layout.network import Cell, Network
from vitconv.layout.recipe import dense_view
from vitconv.layout.semantics import Semantics


@dataclass(frozen=True)
class Edited:
    """Edits of one network, from the canonical tensors of one side to those of the other.

    `asked` are the edits as given, `network` is what they made, its stored tensors being the canonical ones before.
    """

    asked: tuple[str, ...]
    network: Network

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """{canonical name after the edits: shape}."""
        return self.network.shapes

    def weights(self, before: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the edited weights, float64: {canonical name: tensor}."""
        read = _reader(before)
        cells = self.network.cells
        return {name: torch.from_numpy(value(self.network, cell, read).copy()) for name, cell in cells.items()}

    def gradients(self, before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the gradients with respect to the weights before, from those with respect to the edited ones.

        It is the vector-Jacobian product, in float64, at the weights `before`. Tensors that were dropped are left out.

        Raises:
            Refused: an edit has no adjoint.
        """
        grads = {name: g.detach().cpu().double().numpy() for name, g in after.items()}
        pulled = pull_back(self.network, grads, _reader(before))
        return {name: torch.from_numpy(g.copy()) for name, g in pulled.items()}


def edited(
    shapes: Mapping[str, tuple[int, ...]], facts: Semantics, sizes: Mapping[str, int], depth: int, asked: Sequence[str]
) -> Edited:
    """Plan edits on canonical tensors of these shapes.

    Raises:
        UsageError / Refused: as `vitconv.layout.edits.apply_all`.
    """
    cells = {name: Cell(name, shape, "F64", dense_view(name, shape)) for name, shape in shapes.items()}
    return Edited(tuple(asked), apply_all(Network(cells, {}, sizes, depth, facts), asked))


def _reader(weights: Mapping[str, Tensor]) -> Any:
    def read(cell: Cell) -> Any:
        whole = weights[cell.view.tensor].detach().cpu().double().contiguous().view(-1)
        factors = [f for axis in cell.view.dims for f in axis]
        strided = whole.as_strided([n for n, _ in factors], [s for _, s in factors], cell.view.offset)
        return strided.reshape(cell.shape).contiguous().numpy()

    return read
