"""The three wrappers of a sublayer: residual, norm before, norm after."""

from __future__ import annotations

from torch import Tensor, nn


class Residual(nn.Module):
    """Add the sublayer's output to its first input, scaled by `scale` (DeepNorm's alpha) if there is one."""

    def __init__(self, layer: nn.Module, scale: float | None = None) -> None:
        super().__init__()
        self.layer, self.scale = layer, scale

    def forward(self, *inputs: Tensor) -> Tensor:
        """Return scale * inputs[0] + layer(*inputs); all [b t d], float."""
        residue = inputs[0] if self.scale is None else inputs[0] * self.scale
        return residue + self.layer(*inputs)


class PreNorm(nn.Module):
    """Normalise the inputs, then apply the sublayer; `all_inputs` False: only the first one (<= 0.0.9)."""

    def __init__(self, norm: nn.Module, sublayer: nn.Module, all_inputs: bool) -> None:
        super().__init__()
        self.norm, self.sublayer, self.all_inputs = norm, sublayer, all_inputs

    def forward(self, first: Tensor, *others: Tensor) -> Tensor:
        """Map inputs [b t d], float, to [b t d]."""
        normed = self.norm(first)
        if not self.all_inputs:
            return self.sublayer(normed, *others)
        return self.sublayer(normed, *(normed if x is first else self.norm(x) for x in others))


class PostNorm(nn.Module):
    """Apply the sublayer, then normalise."""

    def __init__(self, norm: nn.Module, sublayer: nn.Module) -> None:
        super().__init__()
        self.norm, self.sublayer = norm, sublayer

    def forward(self, *inputs: Tensor) -> Tensor:
        """Map inputs [b t d], float, to [b t d]."""
        return self.norm(self.sublayer(*inputs))


def deepnorm_alpha(layers: int) -> float:
    """Return (2N)^(1/4) for N encoder layers (Wang et al., DeepNet, 2022, table 1).

    The factory takes N from each configuration's own `num_layers`, not from the length of the stack.
    """
    return (2 * layers) ** 0.25
