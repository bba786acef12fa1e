"""Activations by the names of `Semantics.activation`."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from vitconv.errors import UsageError


def quick_gelu(x: Tensor) -> Tensor:
    """Return x * sigmoid(1.702 x) (Hendrycks and Gimpel, 2016, section 2; CLIP's choice)."""
    return x * torch.sigmoid(1.702 * x)


def gelu_tanh(x: Tensor) -> Tensor:
    """Return 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) (Hendrycks and Gimpel, 2016, section 2)."""
    return functional.gelu(x, approximate="tanh")


def squared_relu(x: Tensor) -> Tensor:
    """Return max(x, 0)^2 (So et al., Primer, 2021)."""
    return functional.relu(x).square()


def activation(name: str) -> Callable[[Tensor], Tensor]:
    """Return the activation of this name: gelu is the exact one, x Phi(x); leaky_relu has slope 0.01.

    Raises:
        UsageError: no such activation.
    """
    table: dict[str, Callable[[Tensor], Tensor]] = {
        "gelu": functional.gelu,
        "gelu_tanh": gelu_tanh,
        "quick_gelu": quick_gelu,
        "relu": functional.relu,
        "silu": functional.silu,
        "squared_relu": squared_relu,
        "leaky_relu": functional.leaky_relu,
    }
    if name not in table:
        raise UsageError(f"activation {name!r}: expected one of {', '.join(table)}")
    return table[name]
