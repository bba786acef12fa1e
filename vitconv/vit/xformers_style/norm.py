"""The norm classes of the releases: nn.LayerNorm, the Triton class, and none."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vitconv.vit.xformers_style.release import Environment, Release


class FusedLayerNorm(nn.Module):
    """Normalise the last axis as the Triton LayerNorm of 0.0.4 to 0.0.26 does; its eps is called `epsilon`.

    On the card a float16 input has an eps of at least `half_floor` (xformers/triton/layer_norm.py, v0.0.11).
    """

    def __init__(self, width: int, epsilon: float, half_floor: float = 0.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))
        self.epsilon, self.half_floor = epsilon, half_floor

    def forward(self, x: Tensor) -> Tensor:
        """Normalise x: [... width], float."""
        eps = max(self.epsilon, self.half_floor) if x.dtype == torch.float16 else self.epsilon
        return nn.functional.layer_norm(x, self.weight.shape, self.weight, self.bias, eps)

    def extra_repr(self) -> str:
        """Describe the norm in `print(model)`."""
        return f"{self.weight.numel()}, epsilon={self.epsilon}"


class Skip(nn.Module):
    """Return the input: `normalization: skip` of 0.0.12 and later."""

    def forward(self, x: Tensor) -> Tensor:
        """Return x."""
        return x


def make_norm(width: int, release: Release, environment: Environment, use_triton: bool, normalise: bool) -> nn.Module:
    """Build the norm that this release builds in this environment."""
    if not normalise:
        return Skip()
    kind, eps = release.norm(environment, use_triton)
    if kind == "LayerNorm":
        return nn.LayerNorm(width, eps=eps)
    return FusedLayerNorm(width, eps, release.half_eps_floor if environment.cuda else 0.0)
