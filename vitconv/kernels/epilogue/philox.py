"""Draw dropout masks from Philox4x32-10 in plain PyTorch, bit for bit what the Triton kernel draws.

The four words of one call go to four columns, so none is wasted: with Q = ceil(columns / 4), element (row,
column) takes word `column // Q` of counter `row * Q + column % Q`, the key being the 64-bit seed. The mask
depends on the seed, the column count and the element, not on tile, device or Triton release. An element is
kept where its word is >= round(p 2^32), compared as an integer. Source: Salmon et al. 2011 (Philox4x32-10);
known answers of their Random123 in the tests.
"""

from __future__ import annotations

import torch
from torch import Tensor

_MASK = 0xFFFFFFFF
_ROUND = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)


def philox(seed: int, counter: tuple[Tensor, Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Run ten rounds on four 32-bit words held in int64 tensors of one shape; returns four such tensors."""
    c0, c1, c2, c3 = counter
    k0, k1 = seed & _MASK, (seed >> 32) & _MASK
    for _ in range(10):
        # int64 products wrap modulo 2^64; the shift is arithmetic, and the mask removes the copied sign.
        a, b = c0 * _ROUND[0], c2 * _ROUND[1]
        c0, c1, c2, c3 = (
            ((b >> 32) & _MASK) ^ c1 ^ k0,
            b & _MASK,
            ((a >> 32) & _MASK) ^ c3 ^ k1,
            a & _MASK,
        )
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return c0, c1, c2, c3


def threshold(p: float) -> int:
    """Return round(p 2^32): words below it are dropped; 0 drops nothing, 2^32 everything."""
    return round(p * 2**32)


def keep_mask(rows: int, columns: int, p: float, seed: int, device: torch.device | str = "cpu") -> Tensor:
    """Draw the mask [rows columns], bool, True where an element is kept."""
    quarter = -(-columns // 4)
    counter = torch.arange(rows * quarter, dtype=torch.int64, device=device)
    zero = torch.zeros_like(counter)
    words = philox(seed, (counter & _MASK, (counter >> 32) & _MASK, zero, zero))
    drawn = torch.stack([word.view(rows, quarter) for word in words], dim=1).view(rows, 4 * quarter)
    return drawn[:, :columns] >= threshold(p)
