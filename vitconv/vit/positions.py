"""Positions inside attention: rotary turns of queries and keys, and biases by relative position."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from vitconv.layout.token_buffers import angles, class_index
from vitconv.vit.config import ViTConfig

Turn = tuple[Tensor, Tensor]
_DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16}


class Rope(nn.Module):
    """Rotary positions of a grid (Su et al., RoFormer, 2021), in the two forms of vision transformers.

    half (DINOv3): place i of n is at 2 (i + 1/2) / n - 1; the angle is 2 pi times that over each period, rows first,
    then columns; a pair is component k and k + e/2. With `rope_places` min or max, n is the shorter or the longer side
    of the grid for both. interleaved (EVA-02): place i of n is at i / n times the places of
    the reference grid; base 10000; a pair is two neighbours.
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        facts = config.facts
        self.half, self.width = facts.rope_layout == "half", config.head_width
        self.reference, self.places = facts.rope_reference, facts.rope_places or "separate"
        # What the author's code rounds to, whatever the network is in.
        self.precision = facts.rope_precision
        base = facts.rope_theta or 100.0
        size = config.head_width // 4
        stored = config.periods > 0
        made = base ** (torch.arange(size, dtype=torch.float64) / size)
        self.register_buffer("periods", made.to(torch.get_default_dtype()) if stored else None)
        self.base = base

    def forward(self, grid: tuple[int, int], like: Tensor) -> Turn:
        """Return cosines and sines for the patches of a grid: two of [n e]."""
        if self.half:
            periods = self.periods
            if periods is None:
                size = self.width // 4
                periods = self.base ** (torch.arange(size, dtype=like.dtype, device=like.device) / size)
            waves = (2 * math.pi * self._places(grid, like)).to(like.dtype) / periods.to(like.dtype)
            waves = torch.cat([waves.flatten(1)] * 2, -1)
        else:
            # EVA-02's code takes frequencies in float32.
            taken = {"float32": torch.float32, "float32-frequencies": torch.float64}.get(self.precision or "")
            turns = angles(grid, self.width, (self.reference or grid)[0], (taken and self.precision) or "float64")
            kind = taken or like.dtype
            waves = torch.as_tensor(turns, dtype=kind, device=like.device)
        return waves.cos().to(like), waves.sin().to(like)

    def _places(self, grid: tuple[int, int], like: Tensor) -> Tensor:
        """Return the places of a grid from -1 to 1: [n 2 1]."""
        kind = _DTYPES.get(self.precision or "", like.dtype)
        over = {"min": (min(grid),) * 2, "max": (max(grid),) * 2}.get(self.places, grid)
        at = [
            (torch.arange(n, dtype=kind, device=like.device) + 0.5) / m * 2 - 1 for n, m in zip(grid, over, strict=True)
        ]
        return torch.stack(torch.meshgrid(*at, indexing="ij"), -1).reshape(-1, 2, 1)

    def extra_repr(self) -> str:
        """Describe the form in `print(model)`."""
        return f"{'half' if self.half else 'interleaved'}, head width {self.width}"


def turned(x: Tensor, turn: Turn, half: bool) -> Tensor:
    """Turn x: [b h t e] by cosines and sines, [n e] or [h n e], of its last n tokens; the tokens before them stay."""
    cos, sin = turn
    still, moved = x[:, :, : -cos.shape[-2]], x[:, :, -cos.shape[-2] :]
    if half:
        a, b = moved.chunk(2, -1)
        aside = torch.cat([-b, a], -1)
    else:
        aside = torch.stack([-moved[..., 1::2], moved[..., ::2]], -1).flatten(-2)
    return torch.cat([still, moved * cos + aside * sin], 2)


def relative_bias(table: Tensor, rows_of_cls: Tensor, grid: tuple[int, int]) -> Tensor:
    """Return the bias of attention between class token and patches: [h 1+n 1+n] (Bao et al., BEiT, 2021)."""
    index = torch.as_tensor(class_index(*grid), device=table.device)
    return torch.cat([table, rows_of_cls])[index].permute(2, 0, 1)
