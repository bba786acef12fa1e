"""Focused linear attention in the blocks of Swin, PVT and CSwin (Han et al., FLatten Transformer, 2023)."""

from __future__ import annotations

from math import isqrt
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitconv.kernels.focused.module import Form, from_stripes, mix, to_stripes
from vitconv.vit.attention import form_of
from vitconv.vit.stages.attention import Grid, Projections, Reduction
from vitconv.vit.stages.config import StagesConfig


class Focus(nn.Module):
    """The parameters of one focused attention: scale [a], position table [u a], depthwise filter [e x y]."""

    def __init__(self, config: StagesConfig, at: str) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.zeros(config.shapes[f"{at}scale"]))
        self.pos = nn.Parameter(torch.zeros(config.shapes[f"{at}pos"]))
        self.dwc = nn.Module()
        self.dwc.weight = nn.Parameter(torch.zeros(config.shapes[f"{at}dwc.weight"]))
        self.dwc.bias = nn.Parameter(torch.zeros(config.shapes[f"{at}dwc.bias"]))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, heads: int, grid: Grid, form: Form) -> Tensor:
        """Mix q: [b t a] with k and v: [b s a] and add the depthwise branch."""
        weight = self.dwc.weight.unsqueeze(1)
        padding = tuple(n // 2 for n in weight.shape[2:])
        conv: Any = SimpleNamespace(weight=weight, bias=self.dwc.bias, padding=padding)
        return mix(q, k, v, self.scale[None, None], self.pos[None], conv, heads, grid, form)


class FocusedWindowAttention(Projections):
    """Attend linearly in windows; a mask of shifted windows is not used, as published."""

    def __init__(self, config: StagesConfig, s: int, i: int) -> None:
        super().__init__(config, s, i)
        _adopt(self, Focus(config, f"stages.{s}.blocks.{i}.attn."))
        self.window = config.window(s, i)
        self.form = form_of(config.facts)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Mix the tokens of x: [windows t d]."""
        return self.out(Focus.attend(self, self.q(x), self.k(x), self.v(x), self.heads, self.window, self.form))  # type: ignore[arg-type]


class FocusedReducedAttention(Projections):
    """Attend linearly from all places to spatially reduced keys (FLatten-PVT)."""

    def __init__(self, config: StagesConfig, s: int, i: int) -> None:
        super().__init__(config, s, i)
        _adopt(self, Focus(config, f"stages.{s}.blocks.{i}.attn."))
        self.reduce = Reduction(config, s, i, self)
        self.form = form_of(config.facts)

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        """Mix the tokens of x: [b t d] on a grid."""
        less = self.reduce(self, x, grid)
        return self.out(Focus.attend(self, self.q(x), self.k(less), self.v(less), self.heads, grid, self.form))  # type: ignore[arg-type]


def _adopt(owner: nn.Module, focus: Focus) -> None:
    """Give the parameters of a focus to the attention itself, where the canonical names have them."""
    owner.scale, owner.pos, owner.dwc = focus.scale, focus.pos, focus.dwc


class StripedAttention(Projections):
    """Attend in stripes, half of the heads in each direction, or all of them over the whole map (CSwin's block).

    Every branch adds a 3 x 3 depthwise convolution of its values within its stripes (Dong et al., CSwin, 2022).
    """

    def __init__(self, config: StagesConfig, s: int, i: int) -> None:
        super().__init__(config, s, i)
        at = f"stages.{s}.blocks.{i}.attn."
        self.branches = 2 if f"{at}b1.lepe.weight" in config.shapes else 1
        self.focused = config.focused(s, i)
        self.form = form_of(config.facts) if self.focused else None
        self.split_size = None if self.focused or self.branches == 1 else config.split(s)
        for j in range(self.branches):
            branch = Focus(config, f"{at}b{j}.") if self.focused else nn.Module()
            branch.lepe = nn.Module()
            branch.lepe.weight = nn.Parameter(torch.zeros(config.shapes[f"{at}b{j}.lepe.weight"]))
            branch.lepe.bias = nn.Parameter(torch.zeros(config.shapes[f"{at}b{j}.lepe.bias"]))
            self.add_module(f"b{j}", branch)

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        """Mix the tokens of x: [b t d] on a grid."""
        parts = zip(*(y.chunk(self.branches, -1) for y in (self.q(x), self.k(x), self.v(x))), strict=True)
        mixed = [self._branch(j, q, k, v, grid) for j, (q, k, v) in enumerate(parts)]
        return self.out(torch.cat(mixed, -1))

    def _branch(self, j: int, q: Tensor, k: Tensor, v: Tensor, grid: Grid) -> Tensor:
        branch: Any = getattr(self, f"b{j}")
        stripe = self._stripe(j, grid)
        q, k, v = (to_stripes(y, grid, stripe) for y in (q, k, v))
        heads = self.heads // self.branches
        if self.form is not None:
            y = branch.attend(q, k, v, heads, stripe, self.form)
        else:
            split = [t.unflatten(-1, (heads, -1)).transpose(1, 2) for t in (q, k, v)]
            logits = (split[0] * split[0].shape[-1] ** -0.5) @ split[1].transpose(-2, -1)
            y = (logits.softmax(-1) @ split[2]).transpose(1, 2).flatten(2)
        weight = branch.lepe.weight.unsqueeze(1)
        image = v.transpose(1, 2).unflatten(2, stripe)
        lepe = F.conv2d(image, weight, branch.lepe.bias, padding=1, groups=weight.shape[0])
        return from_stripes(y + lepe.flatten(2).transpose(1, 2), grid, stripe)

    def _stripe(self, j: int, grid: Grid) -> Grid:
        if self.branches == 1:
            return grid
        if self.form is not None:
            places = getattr(self, f"b{j}").pos.shape[0]
            width = places // grid[j]
        else:
            width = self.split_size or isqrt(grid[0])
        return (grid[0], width) if j == 0 else (width, grid[1])
