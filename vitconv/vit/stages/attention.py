"""Attention of the stage-wise networks by softmax: in windows, with cosines, and over spatially reduced keys."""

from __future__ import annotations

from math import log

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitconv.layout.windows import Window
from vitconv.vit.norm import Norm
from vitconv.vit.stages.config import StagesConfig

Grid = tuple[int, int]


class Projections(nn.Module):
    """Hold q, k, v and the output projection, each with or without a bias as the tensors have it."""

    def __init__(self, config: StagesConfig, s: int, i: int) -> None:
        super().__init__()
        at = f"stages.{s}.blocks.{i}.attn."
        for part in ("q", "k", "v", "out"):
            rows, columns = config.shapes[f"{at}{part}.weight"]
            self.add_module(part, nn.Linear(columns, rows, bias=f"{at}{part}.bias" in config.shapes))
        self.heads, self.told_scale = config.heads(s, i), config.facts.attention_scale

    def split(self, x: Tensor) -> Tensor:
        """Return [b t (h e)] as [b h t e]."""
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def usual_scale(self) -> float:
        """Return 1 / sqrt(e), or the one number for all stages that was told."""
        return float((self.q.out_features // self.heads) ** -0.5) if self.told_scale is None else self.told_scale

    def softmax(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None) -> Tensor:
        """Attend by softmax, logits q k^T scale + bias, from and to [b t (h e)]; for those that have a scale."""
        q, k, v = (self.split(x) for x in (q, k, v))
        logits = (q * self.scale) @ k.transpose(-2, -1)
        logits = logits if bias is None else logits + bias
        return (logits.softmax(-1) @ v).transpose(1, 2).flatten(2)


class WindowAttention(Projections):
    """Attend within windows, with a bias for every relative position (Liu et al., Swin, 2021, equation 4).

    With a table the logits are q k^T / sqrt(e) + B. With an MLP of the coordinates they are
    cos(q, k) exp(min(s, log 100)) + 16 sigmoid(MLP(coordinates)) (Swin V2, 2022, equations 2 and 3).
    """

    def __init__(self, config: StagesConfig, s: int, i: int) -> None:
        super().__init__(config, s, i)
        at = f"stages.{s}.blocks.{i}.attn."
        self.window, self.scale = config.window(s, i), self.usual_scale()
        self.cosine = f"{at}logit_scale" in config.shapes
        if self.cosine:
            # Made once, in float32 whatever is computed in, as every codebase does.
            places = coordinates(self.window, config.pretrained_window(s))
            self.register_buffer("places", places, persistent=False)
            self.logit_scale = nn.Parameter(torch.zeros(self.heads))
            self.cpb = nn.Module()
            self.cpb.up = nn.Linear(2, config.shapes[f"{at}cpb.up.weight"][0])
            self.cpb.down = nn.Linear(config.shapes[f"{at}cpb.up.weight"][0], self.heads, bias=False)
        else:
            self.table = nn.Parameter(torch.zeros(config.shapes[f"{at}table"]))

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Attend in x: [windows t d]; `mask` [windows-of-an-image t t] is added to the logits."""
        q, k, v = self.q(x), self.keys(x), self.v(x)
        bias = self.bias()
        if mask is not None:
            bias = bias + mask.to(x.dtype)[:, None]
            bias = bias.repeat(x.shape[0] // mask.shape[0], 1, 1, 1)
        if not self.cosine:
            return self.out(self.softmax(q, k, v, bias))
        q, k, v = (self.split(y) for y in (q, k, v))
        logits = self.unit(q) @ self.unit(k).transpose(-2, -1) * self.sharpness()[:, None, None] + bias
        return self.out((logits.softmax(-1) @ v).transpose(1, 2).flatten(2))

    def keys(self, x: Tensor) -> Tensor:
        """Return the keys: Swin V2 has no bias there, torchvision stores one and sets it to zero in every pass."""
        return F.linear(x, self.k.weight, None if self.cosine else self.k.bias)

    def unit(self, x: Tensor) -> Tensor:
        """Return x: [... e] over its length."""
        return F.normalize(x, dim=-1)

    def sharpness(self) -> Tensor:
        """Return what a cosine is multiplied with: [h]."""
        return self.logit_scale.clamp(max=log(100.0)).exp()

    def bias(self) -> Tensor:
        """Return what is added to the logits for every pair of places in the window: [h t t]."""
        table = self.table if not self.cosine else 16 * torch.sigmoid(self.from_coordinates())
        return table[pairs(self.window).to(table.device)].permute(2, 0, 1)

    def from_coordinates(self) -> Tensor:
        """Return the table that the MLP makes of the relative places: [t h]."""
        return self.cpb.down(F.relu(self.cpb.up(self.places.to(self.cpb.up.weight))))


class ReducedAttention(Projections):
    """Attend from all places to spatially reduced keys and values (Wang et al., PVT, 2021, section 3.3)."""

    def __init__(self, config: StagesConfig, s: int, i: int) -> None:
        super().__init__(config, s, i)
        self.reduce, self.scale = Reduction(config, s, i, self), self.usual_scale()

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        """Attend in x: [b t d] on a grid."""
        less = self.reduce(self, x, grid)
        return self.out(self.softmax(self.q(x), self.k(less), self.v(less)))


class Reduction:
    """Reduce a map by a convolution as wide as its stride, then a norm; both are parameters of the attention."""

    def __init__(self, config: StagesConfig, s: int, i: int, owner: nn.Module) -> None:
        at = f"stages.{s}.blocks.{i}.attn."
        self.present = f"{at}sr.weight" in config.shapes
        if self.present:
            f, d, self.side, _ = config.shapes[f"{at}sr.weight"]
            owner.sr = nn.Conv2d(d, f, self.side, self.side)
            owner.sr_norm = Norm(f, config.facts.embed_norm_eps or 0.0)
            # PVTv2's linear form averages to 7 x 7 first, and its convolution is 1 x 1.
            self.pooled = self.side == 1

    def __call__(self, owner: nn.Module, x: Tensor, grid: Grid) -> Tensor:
        """Return the reduced tokens of x: [b t d]."""
        if not self.present:
            return x
        feature_map = x.transpose(1, 2).unflatten(2, grid)
        if self.pooled:
            feature_map = F.adaptive_avg_pool2d(feature_map, 7)
        less = owner.sr_norm(owner.sr(feature_map).flatten(2).transpose(1, 2))
        return F.gelu(less) if self.pooled else less


def pairs(window: Window) -> Tensor:
    """Return the row of the table for every pair of places in a window of h x w: int64 [hw hw]."""
    high, wide = window
    at = torch.arange(high * wide)
    down, right = (x[:, None] - x[None, :] for x in (at // wide, at % wide))
    return (down + high - 1) * (2 * wide - 1) + right + wide - 1


def coordinates(window: Window, pretrained: int) -> Tensor:
    """Return sign(c) log2(1 + 8 |c| / reach) / 3 of every relative place: float32 [(2h-1)(2w-1) 2].

    In float32, as every codebase stores the table; reach is that of the window of pre-training, where there was one.
    """

    def line(side: int) -> Tensor:
        c = torch.arange(1 - side, side, dtype=torch.float32, device="cpu") / ((pretrained or side) - 1) * 8
        return c.sign() * torch.log2(c.abs() + 1.0) / 3.0

    return torch.stack(torch.meshgrid(line(window[0]), line(window[1]), indexing="ij"), -1).flatten(0, 1)
