"""EVA-02 as its authors save it, small: waves of any grid and reference size, and any grid of the position table."""

from __future__ import annotations

import torch
from kit import CLASSES, DEPTH, DIM, HEADS, MLP, PATCH, State

WIDTH = DIM // HEADS


def waves(rows: int, columns: int, reference: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cos and sin, [rows * columns, WIDTH]: rows first, each frequency twice, places numbered to `reference`."""
    steps = 10000.0 ** -(torch.arange(0, WIDTH // 2, 2) / (WIDTH // 2))
    parts = [(torch.arange(n) / n * reference)[:, None] * steps for n in (rows, columns)]
    down, right = (p.repeat_interleave(2, -1) for p in parts)
    both = torch.cat([down[:, None].expand(rows, columns, -1), right[None].expand(rows, columns, -1)], -1).reshape(
        rows * columns, -1
    )
    return both.cos(), both.sin()


def eva02(
    rows: int = 4, columns: int = 4, reference: int = 4, *, gated: bool = True, head: bool = True, seed: int = 0
) -> State:
    """Return an EVA-02 of DIM, DEPTH and HEADS with everything drawn."""
    gen = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> torch.Tensor:
        return 0.3 * torch.randn(*shape, generator=gen)

    def pair(name: str, *shape: int, around: float = 0.0) -> State:
        return {f"{name}.weight": around + draw(*shape), f"{name}.bias": draw(shape[0])}

    cos, sin = waves(rows, columns, reference)
    state: State = {"cls_token": draw(1, 1, DIM), "pos_embed": draw(1, 1 + rows * columns, DIM)}
    state |= pair("patch_embed.proj", DIM, 3, PATCH, PATCH)
    state |= {"rope.freqs_cos": cos, "rope.freqs_sin": sin}
    for i in range(DEPTH):
        b = f"blocks.{i}."
        state |= pair(b + "norm1", DIM, around=1.0) | pair(b + "norm2", DIM, around=1.0)
        state |= {f"{b}attn.{x}_proj.weight": draw(DIM, DIM) for x in "qkv"}
        state |= {f"{b}attn.{x}_bias": draw(DIM) for x in "qv"}
        state |= pair(b + "attn.proj", DIM, DIM)
        if gated:
            state |= pair(b + "attn.inner_attn_ln", DIM, around=1.0) | pair(b + "mlp.ffn_ln", 88, around=1.0)
            state |= pair(b + "mlp.w1", 88, DIM) | pair(b + "mlp.w2", 88, DIM) | pair(b + "mlp.w3", DIM, 88)
        else:
            state |= pair(b + "mlp.fc1", MLP, DIM) | pair(b + "mlp.fc2", DIM, MLP)
    state |= pair("norm", DIM, around=1.0)
    return state | (pair("head", CLASSES, DIM) if head else {})
