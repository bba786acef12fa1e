"""The factory's own embeddings: patches and positions inside the first block."""

from __future__ import annotations

from math import isqrt, log

import torch
from torch import Tensor, nn

from vitconv.errors import UsageError
from vitconv.vit.xformers_style.config import Patch, Position


class ToImage(nn.Module):
    """Lay a sequence [b t c] out as a square image [b c s s]; images pass."""

    def forward(self, x: Tensor) -> Tensor:
        """Map x: [b t c] or [b c height width], float."""
        if x.ndim != 3:
            return x
        side = isqrt(x.shape[1])
        if side * side != x.shape[1]:
            raise UsageError(f"{x.shape[1]} tokens are no square, and the patch embedding needs an image")
        return x.transpose(1, 2).unflatten(2, (side, side))


class ToSequence(nn.Module):
    """Flatten an image [b d rows columns] to [b (rows columns) d]."""

    def forward(self, x: Tensor) -> Tensor:
        """Map x: [b d rows columns], float."""
        return x.flatten(2).transpose(1, 2)


def patch_embedding(patch: Patch) -> nn.Sequential:
    """Build the patch embedding; its convolution has the name `1`."""
    conv = nn.Conv2d(patch.channels, patch.width, patch.kernel, patch.stride, patch.padding)
    return nn.Sequential(ToImage(), conv, ToSequence())


class Learnable(nn.Module):
    """Put the class token ahead, if there is one, then add `pos_emb`: [1 t d]."""

    def __init__(self, position: Position) -> None:
        super().__init__()
        self.pos_emb = nn.Parameter(torch.randn(1, position.length + int(position.cls), position.width) * 0.02)
        self.class_token = nn.Parameter(torch.zeros(position.width)) if position.cls else None

    def forward(self, x: Tensor) -> Tensor:
        """Map x: [b n d], float, to [b t d]."""
        if self.class_token is not None:
            x = torch.cat([self.class_token.expand(len(x), 1, -1), x], dim=1)
        return x + self.pos_emb


class Sine(nn.Module):
    """Add sin(t w_j) in even columns j, cos(t w_j) in odd ones, w_j = 10000^(-2 floor(j/2)/d); float32."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, x: Tensor) -> Tensor:
        """Map x: [b t d], float."""
        time = torch.arange(x.shape[1], device=x.device, dtype=torch.float32).unsqueeze(1)
        column = torch.arange(self.width, device=x.device, dtype=torch.float32)
        angle = time * torch.exp(-log(10000) * (2 * (column // 2) / self.width))
        return x + torch.where(column % 2 == 0, angle.sin(), angle.cos())


def position_encoding(position: Position) -> nn.Module:
    """Build the position encoding."""
    return Learnable(position) if position.kind == "learnable" else Sine(position.width)
