"""Rotary positions whose places are numbered: along either side first, from any number, or by trained frequencies.

Source: huggingface/pytorch-image-models, timm/layers/pos_embed_sincos.py, 1.0.31 (`RotaryEmbeddingCat` and
`RotaryEmbeddingMixed`); naver-ai/rope-vit for the trained ones.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vitconv.layout.semantics import Semantics
from vitconv.vit.config import ViTConfig
from vitconv.vit.positions import Rope, Turn


def rope_of(config: ViTConfig) -> nn.Module | None:
    """Return the module that makes the turns of a whole network, or None where none turns or each block has its own."""
    facts = config.facts
    if facts.position != "rope" or config.mixed:
        return None
    numbered = facts.rope_layout == "interleaved" and not config.periods and not _as_eva(facts)
    return Axial(config) if numbered else Rope(config)


def _as_eva(facts: Semantics) -> bool:
    """Say whether places are numbered as in EVA-02's code, which has base 10000 and numbers rows first, from 0."""
    reference = facts.rope_reference
    square = reference is not None and reference[0] == reference[1]
    return square and facts.rope_order != "columns" and not facts.rope_offset and facts.rope_theta in (None, 10000.0)


class Axial(nn.Module):
    """Turn neighbours by frequencies of a base: half of them by the first side's places, half by the other's.

    Place i of n is (i + offset), times r / n where a reference grid has r places; frequency k of e/4 is
    base^(-k/(e/4)). The first side is that of the rows, or, with `rope_order` columns, that of the columns.
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        facts = config.facts
        self.width, self.base = config.head_width, facts.rope_theta or 10000.0
        self.columns_first, self.offset = facts.rope_order == "columns", facts.rope_offset or 0.0
        self.reference = facts.rope_reference

    def forward(self, grid: tuple[int, int], like: Tensor) -> Turn:
        """Return cosines and sines for the patches of a grid: two of [n e]."""
        size = self.width // 4
        steps = self.base ** -(torch.arange(size, dtype=like.dtype, device=like.device) / size)
        rows, columns = places(grid, like, self.offset, self.reference)
        sides = (columns, rows) if self.columns_first else (rows, columns)
        waves = torch.cat([side[:, None] * steps for side in sides], -1).repeat_interleave(2, -1)
        return waves.cos(), waves.sin()

    def extra_repr(self) -> str:
        """Describe the form in `print(model)`."""
        first = "columns" if self.columns_first else "rows"
        return f"interleaved, {first} first from {self.offset:g}, base {self.base:g}, head width {self.width}"


def mixed(frequencies: Tensor, grid: tuple[int, int], columns_first: bool) -> Turn:
    """Return cosines and sines by trained frequencies of both sides: two of [h n e].

    frequencies: [2 h e/2], float, of the first side and of the other; place i of either side is i.
    """
    rows, columns = places(grid, frequencies)
    first, other = (columns, rows) if columns_first else (rows, columns)
    waves = first[:, None] * frequencies[0, :, None] + other[:, None] * frequencies[1, :, None]
    waves = waves.repeat_interleave(2, -1)
    return waves.cos(), waves.sin()


def places(
    grid: tuple[int, int], like: Tensor, offset: float = 0.0, reference: tuple[int, int] | None = None
) -> tuple[Tensor, Tensor]:
    """Return the number of the row and that of the column of every patch: two of [n]."""
    sides = []
    for n, r in zip(grid, reference or grid, strict=True):
        side = torch.arange(n, dtype=like.dtype, device=like.device) + offset
        sides.append(side if reference is None else side / n * r)
    rows, columns = torch.meshgrid(*sides, indexing="ij")
    return rows.flatten(), columns.flatten()
