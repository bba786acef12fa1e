"""One block of a stage-wise network: an attention branch, in shifted windows or over the map, and an MLP."""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitconv.errors import Refused
from vitconv.layout.windows import RULES, Window, contested, shift_of
from vitconv.vit.activation import activation
from vitconv.vit.norm import Norm
from vitconv.vit.stages.attention import Grid, ReducedAttention, WindowAttention
from vitconv.vit.stages.config import StagesConfig
from vitconv.vit.stages.focused import FocusedReducedAttention, FocusedWindowAttention, StripedAttention


class Mlp(nn.Module):
    """down(act(conv(up(x)))), the depthwise convolution only where the tensors have it (PVTv2)."""

    def __init__(self, config: StagesConfig, s: int, i: int) -> None:
        super().__init__()
        at = f"stages.{s}.blocks.{i}.mlp."
        m, d = config.shapes[f"{at}up.weight"]
        self.up, self.down = nn.Linear(d, m), nn.Linear(m, d)
        self.act = activation(config.facts.activation or "")
        self.dwc: nn.Module | None = None
        if f"{at}dwc.weight" in config.shapes:
            self.dwc = nn.Module()
            self.dwc.weight = nn.Parameter(torch.zeros(config.shapes[f"{at}dwc.weight"]))
            self.dwc.bias = nn.Parameter(torch.zeros(m))
        # PVTv2's linear form rectifies ahead of the convolution.
        self.rectified = (
            self.dwc is not None and config.shapes.get(f"stages.{s}.blocks.{i}.attn.sr.weight", (0, 0, 0, 0))[2] == 1
        )

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        """Map x: [b t d] on a grid to [b t d]."""
        hidden = self.up(x)
        if self.dwc is not None:
            hidden = hidden.relu() if self.rectified else hidden
            weight = self.dwc.weight.unsqueeze(1)
            image = hidden.transpose(1, 2).unflatten(2, grid)
            padding = weight.shape[-1] // 2
            hidden = F.conv2d(image, weight, self.dwc.bias, padding=padding, groups=weight.shape[0])
            hidden = hidden.flatten(2).transpose(1, 2)
        return self.down(self.act(hidden))


class StageBlock(nn.Module):
    """x + f(n(x)) for attention, then the MLP; with norm_placement res-post x + n(f(x)) (Swin V2)."""

    def __init__(self, config: StagesConfig, s: int, i: int) -> None:
        super().__init__()
        d, eps = config.width(s), config.facts.norm_eps or 0.0
        self.windowed, self.post = config.windowed, config.facts.norm_placement == "res-post"
        self.odd, self.rule = i % 2 == 1, config.facts.window_rule
        self.norm1, self.norm2 = Norm(d, eps), Norm(d, eps)
        focused = config.focused(s, i)
        kinds = {
            (True, False): WindowAttention,
            (True, True): FocusedWindowAttention,
            (False, False): ReducedAttention,
            (False, True): FocusedReducedAttention,
        }
        kind = StripedAttention if config.striped else kinds[config.windowed, focused]
        self.attn: nn.Module = kind(config, s, i)
        self.mlp = Mlp(config, s, i)

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        """Map x: [b t d] on a grid to [b t d]."""
        if self.post:
            x = x + self.norm1(self.mix(x, grid))
            return x + self.norm2(self.mlp(x, grid))
        x = x + self.mix(self.norm1(x), grid)
        return x + self.mlp(self.norm2(x), grid)

    def mix(self, x: Tensor, grid: Grid) -> Tensor:
        """Attend over the map, or in its windows: filled up to whole windows, shifted in every second block."""
        if not self.windowed:
            return self.attn(x, grid)
        high, wide = window = cast(Window, self.attn.window)
        shift = self.shift(window, grid)
        image, fill = x.unflatten(1, grid), (0, 0, 0, -grid[1] % wide, 0, -grid[0] % high)
        if self.rule == "timm":
            image = F.pad(image.roll((-shift[0], -shift[1]), (1, 2)), fill)
        else:
            image = F.pad(image, fill).roll((-shift[0], -shift[1]), (1, 2))
        size = image.shape[1], image.shape[2]
        windows = image.unflatten(2, (-1, wide)).unflatten(1, (-1, high)).transpose(2, 3)
        tokens = windows.flatten(0, 2).flatten(1, 2)
        mask = self.mask(window, size, shift)
        y = self.attn(tokens, None if mask is None else mask.to(x.device))
        y = y.reshape(*windows.shape).transpose(2, 3).flatten(3, 4).flatten(1, 2)
        y = y[:, : grid[0], : grid[1]].roll(shift, (1, 2)) if self.rule == "timm" else y.roll(shift, (1, 2))
        return y[:, : grid[0], : grid[1]].flatten(1, 2)

    def mask(self, window: Window, size: Grid, shift: tuple[int, int]) -> Tensor | None:
        """Return what keeps places apart that the shift brought together, or None without a shift."""
        return apart(window, size, shift) if any(shift) else None

    def shift(self, window: Window, grid: Grid) -> tuple[int, int]:
        """Return by how much the windows of this block are shifted on a map.

        Raises:
            Refused: codebases do it in different ways on this map, and nothing says whose windows these are.
        """
        if not self.odd:
            return 0, 0
        if contested(window, grid) and self.rule is None:
            raise Refused(
                f"codebases lay out shifted windows of {window[0]}x{window[1]} on a map of {grid[0]}x{grid[1]} in"
                f" different ways; say whose these are with --set window_rule={'|'.join(RULES)}"
            )
        return shift_of(window, grid, self.rule or "microsoft")


def apart(window: Window, size: Grid, shift: tuple[int, int]) -> Tensor:
    """Return -100 between places of a window that the cyclic shift brought together, else 0: [windows hw hw]."""

    def band(n: int, side: int, by: int) -> Tensor:
        at = torch.arange(n)
        return (at >= n - side).int() + (at >= n - by).int() if by else torch.zeros(n, dtype=torch.int32)

    (high, wide), places = window, window[0] * window[1]
    labels = 3 * band(size[0], high, shift[0])[:, None] + band(size[1], wide, shift[1])[None, :]
    labels = labels.unflatten(1, (-1, wide)).unflatten(0, (-1, high)).transpose(1, 2).reshape(-1, places)
    return torch.where(labels[:, None, :] == labels[:, :, None], 0.0, -100.0).double()
