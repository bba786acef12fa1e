"""Fixed sine and cosine position tables, in the two forms in use; they are not interchangeable."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from vitconv.errors import Refused

if TYPE_CHECKING:
    from torch import Tensor

KINDS = ("mae", "big_vision")


@dataclass(frozen=True, slots=True)
class Table:
    """A table [n d] of a grid of (rows, columns) patches.

    mae: frequencies 10000^(-k/(d/4)), the columns' half first (facebookresearch/mae, util/pos_embed.py).
    big_vision: frequencies 10000^(-k/(d/4-1)), the end point included (google-research/big_vision, models/vit.py).
    """

    kind: str
    rows: int
    columns: int
    width: int

    @property
    def text(self) -> str:
        """Return what it is in words."""
        return f"2-D sin-cos as in {self.kind}, grid {self.rows}x{self.columns}"

    @property
    def mean(self) -> float:
        """Return the mean of all values."""
        return _moments(self)[0]

    @property
    def std(self) -> float:
        """Return the standard deviation; the root mean square is exactly sqrt(1/2), as sin² + cos² = 1."""
        return _moments(self)[1]

    def values(self) -> Tensor:
        """Return the table: [n d], float32, worked out in float64.

        Raises:
            Refused: the width is no multiple of 4.
        """
        import torch

        if self.width % 4 or self.width < 8:
            raise Refused(f"a 2-D sin-cos table needs a width that is a multiple of 4 and at least 8, not {self.width}")
        quarter = self.width // 4
        last = quarter if self.kind == "mae" else quarter - 1
        omega = 10000.0 ** (-torch.arange(quarter, dtype=torch.float64) / last)
        row, column = torch.meshgrid(
            torch.arange(self.rows, dtype=torch.float64), torch.arange(self.columns, dtype=torch.float64), indexing="ij"
        )
        halves = []
        for axis in (column, row):
            angle = axis.reshape(-1, 1) * omega
            halves += [angle.sin(), angle.cos()]
        return torch.cat(halves, dim=1).float()


@dataclass(frozen=True, slots=True)
class Periods:
    """The periods [f] of a rotary embedding: theta^(k/f) (facebookresearch/dinov3, rope_position_encoding.py)."""

    theta: float
    count: int

    @property
    def text(self) -> str:
        """Return what it is in words."""
        return f"periods {self.theta:g}^(k/{self.count})"

    @property
    def mean(self) -> float:
        """Return the mean of all values."""
        return _moments(self)[0]

    @property
    def std(self) -> float:
        """Return the standard deviation."""
        return _moments(self)[1]

    def values(self) -> Tensor:
        """Return the periods: [f], float32, worked out in float64."""
        import torch

        return (self.theta ** (torch.arange(self.count, dtype=torch.float64) / self.count)).float()


@dataclass(frozen=True, slots=True)
class Frequencies:
    """The frequencies [2 h f] of rotary positions that are trained: theta^(-k/(f/2)) of either side, zero of the other.

    Source: timm/layers/pos_embed_sincos.py, `init_random_2d_freqs` with rotate=False, 1.0.31.
    """

    theta: float
    heads: int
    count: int

    @property
    def text(self) -> str:
        """Return what it is in words."""
        return f"frequencies {self.theta:g}^(-k/{self.count // 2}) along each side"

    @property
    def mean(self) -> float:
        """Return the mean of all values."""
        return _moments(self)[0]

    @property
    def std(self) -> float:
        """Return the standard deviation."""
        return _moments(self)[1]

    def values(self) -> Tensor:
        """Return the frequencies: [2 h f], float32, worked out in float64."""
        import torch

        half = self.count // 2
        steps = self.theta ** (-torch.arange(half, dtype=torch.float64) / half)
        nothing = torch.zeros_like(steps)
        both = torch.stack([torch.cat([steps, nothing]), torch.cat([nothing, steps])])
        return both[:, None].expand(2, self.heads, self.count).float().clone()


@cache
def _moments(table: Table | Periods | Frequencies) -> tuple[float, float]:
    values = table.values().double()
    mean = float(values.mean())
    return mean, math.sqrt(float(values.square().mean()) - mean * mean)
