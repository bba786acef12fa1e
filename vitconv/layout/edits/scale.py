"""Computed tensors that scale another: by a vector along the first axis, or by a number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vitconv.layout.network import Cell, Made


def by_rows(label: str, tensor: Cell, gamma: Cell) -> Made:
    """Return `gamma[:, None] * tensor`; `tensor: [d ...]`, `gamma: [d]`; the dtype is the tensor's.

    Gradients: of the tensor gamma * g, of gamma the sum over each row of tensor * g.
    """
    tail = (1,) * (len(tensor.shape) - 1)

    def compute(x: Sequence[Any]) -> Any:
        return x[0] * x[1].reshape(-1, *tail)

    def back(x: Sequence[Any], grad: Any) -> Sequence[Any]:
        own = grad * x[1].reshape(-1, *tail)
        return own, (grad * x[0]).reshape(len(x[1]), -1).sum(axis=1)

    return Made(label, (tensor, gamma), tensor.shape, tensor.dtype, compute, back)


def divided(label: str, tensor: Cell, number: float) -> Made:
    """Return `tensor / number`, of the tensor's dtype."""

    def compute(x: Sequence[Any]) -> Any:
        return x[0] / x[0].dtype.type(number)

    def back(_: Sequence[Any], grad: Any) -> Sequence[Any]:
        return (grad / number,)

    return Made(label, (tensor,), tensor.shape, tensor.dtype, compute, back)
