"""Fan-in and fan-out, and the rule they are counted by: public codebases differ in it, not in the formula."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fans:
    """How many inputs an output sees, how many outputs an input reaches, and how that was counted."""

    fan_in: int
    fan_out: int
    rule: str = "linear"

    @property
    def total(self) -> int:
        """Return fan_in + fan_out."""
        return self.fan_in + self.fan_out

    @property
    def text(self) -> str:
        """Return the fans in words."""
        how = "" if self.rule == "linear" else f" ({self.rule})"
        return f"fan {self.fan_in}+{self.fan_out}{how}"


def linear_fans(shape: tuple[int, ...]) -> Fans:
    """Return the fans of a matrix of shape [out in]."""
    return Fans(shape[1], shape[0])


def fused_fans(shape: tuple[int, ...]) -> Fans:
    """Return the fans of one of q, k, v, counted on the three stacked: fan_out is three times as large.

    Xavier then comes out sqrt(1/2) too small on a square matrix: MAE, timm's jax mode, nn.MultiheadAttention.
    """
    return Fans(shape[1], 3 * shape[0], "q, k, v as one matrix")


def flat_fans(shape: tuple[int, ...]) -> Fans:
    """Return the fans of a patch projection [d c p q] as the matrix [d, c p q] it is (MAE, big_vision)."""
    return Fans(math.prod(shape[1:]), shape[0], "patch projection as a matrix")


def conv_fans(shape: tuple[int, ...]) -> Fans:
    """Return the fans of a convolution [d c p q] as torch counts them: fan_out is d p q."""
    return Fans(math.prod(shape[1:]), shape[0] * math.prod(shape[2:]), "convolution")
