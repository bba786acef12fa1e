"""Build focused-linear-attention layers whose state-dict keys are those of LeapLabTHU/FLatten-Transformer.

Three published forms: `FocusedLinearAttention` (Swin: one qkv, a window), `ReducedFocusedAttention` (PVT and
PVTv2: q and kv apart, spatial reduction of the keys), `StripeFocusedAttention` (CSwin: qkv come from the
block, stripes). All share `mix`: attention by a chosen variant, plus the depthwise branch on v. Initialised
as published: scale and position zero.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitconv.errors import UsageError
from vitconv.kernels.focused.attention import focused_attention
from vitconv.kernels.focused.variants import variant

Grid = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Form:
    """Say how a layer computes: variant, power, and the checkpoint's eps (None: the variant's own)."""

    variant: str = "stable"
    power: float = 3
    eps: float | None = None
    eps_mode: str | None = None
    backend: str = "auto"

    def __post_init__(self) -> None:
        chosen = variant(self.variant)
        if self.variant != "stable" and self.eps_mode not in (None, chosen.eps_mode):
            raise UsageError(
                f"variant {self.variant!r} adds eps to a {chosen.eps_mode}, not to a {self.eps_mode}; "
                "'stable' can do both"
            )

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, scale: Tensor, position: Tensor | None, heads: int, add: Tensor
    ) -> Tensor:
        """Run the variant on q [b t d], k and v [b s d], and add the branch `add` [b t d]."""
        chosen = variant(self.variant)
        eps = chosen.eps if self.eps is None else self.eps
        if self.variant == "stable":
            return focused_attention(
                q, k, v, scale, position, heads=heads, power=self.power, eps=eps,
                eps_mode=self.eps_mode or chosen.eps_mode, add=add, backend=self.backend,
            )  # fmt: skip
        return chosen.run(q, k, v, scale, position, heads=heads, power=self.power, eps=eps) + add


def square(tokens: int) -> Grid:
    """Return the side of a square grid of `tokens`; raise UsageError when it is none."""
    side = math.isqrt(tokens)
    if side * side != tokens:
        raise UsageError(f"{tokens} tokens form no square grid; pass the grid as (height, width)")
    return side, side


def depthwise(v: Tensor, grid: Grid, dwc: nn.Conv2d, heads: int) -> Tensor:
    """Convolve v: [b t (h e)] on its grid, every head with the same depthwise filter; returns [b t d].

    Seen as one convolution over all d channels with the filter repeated per head, v needs no copy: [b t d] is
    already the channels-last map.
    """
    b, _, d = v.shape
    feature_map = v.transpose(1, 2).reshape(b, d, *grid)
    bias = None if dwc.bias is None else dwc.bias.repeat(heads)
    weight = dwc.weight.repeat(heads, 1, 1, 1)
    return F.conv2d(feature_map, weight, bias, padding=dwc.padding, groups=d).flatten(2).transpose(1, 2)


def mix(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: Tensor,
    position: Tensor,
    dwc: nn.Conv2d,
    heads: int,
    grid: Grid,
    form: Form,
) -> Tensor:
    """Attend, and add the depthwise branch; q: [b t d], k and v: [b s d], grid: of the t queries.

    Where s < t (spatial reduction) the branch sees v interpolated along the flattened tokens, as published.
    """
    t = q.shape[1]
    if grid[0] * grid[1] != t:
        raise UsageError(f"grid {grid[0]} x {grid[1]} does not hold the {t} tokens of the input")
    wide = v if v.shape[1] == t else F.interpolate(v.transpose(1, 2), size=t, mode="linear").transpose(1, 2)
    return form.attend(q, k, v, scale, position, heads, depthwise(wide, grid, dwc, heads))


def _check_heads(dim: int, heads: int) -> int:
    if heads < 1 or dim % heads:
        raise UsageError(f"width {dim} does not divide into {heads} heads")
    return dim // heads


def _branch(head_width: int, kernel: int) -> nn.Conv2d:
    return nn.Conv2d(head_width, head_width, kernel, groups=head_width, padding=kernel // 2)


class FocusedLinearAttention(nn.Module):
    """Attend linearly within a window, or globally when the window is the grid (FLatten-Swin's L blocks).

    Keys: qkv, proj, scale [1 1 d], positional_encoding [1 t d], dwc [e 1 k k]. `window` is (height, width) or
    one side.
    """

    def __init__(
        self,
        dim: int,
        window: int | Grid,
        heads: int,
        *,
        qkv_bias: bool = True,
        kernel_size: int = 5,
        proj_drop: float = 0.0,
        form: Form | None = None,
    ) -> None:
        super().__init__()
        self.heads, self.form = heads, form or Form()
        self.window = (window, window) if isinstance(window, int) else window
        self.qkv = nn.Linear(dim, 3 * dim, bias=qkv_bias)
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(proj_drop)
        self.dwc = _branch(_check_heads(dim, heads), kernel_size)
        self.scale = nn.Parameter(torch.zeros(1, 1, dim))
        self.positional_encoding = nn.Parameter(torch.zeros(1, self.window[0] * self.window[1], dim))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Mix the tokens of x: [b t d], b counting windows; a shifted window's mask is ignored as published."""
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        y = mix(q, k, v, self.scale, self.positional_encoding, self.dwc, self.heads, self.window, self.form)
        return self.proj_drop(self.proj(y))


class ReducedFocusedAttention(nn.Module):
    """Attend linearly to spatially reduced keys (FLatten-PVT and -PVTv2).

    Keys: q, kv, proj, scale, positional_encoding [1 t/sr^2 d], dwc, and sr, norm where sr_ratio > 1. `pooled`
    is PVTv2's linear form: keys are averaged to 7 x 7, then sr is a 1 x 1 convolution, norm, erf GELU; the
    table then has tokens // sr_ratio^2 rows as published, which must be 49. The norm's eps is 1e-5.
    """

    def __init__(
        self,
        dim: int,
        tokens: int,
        heads: int,
        *,
        qkv_bias: bool = False,
        sr_ratio: int = 1,
        pooled: bool = False,
        kernel_size: int = 5,
        proj_drop: float = 0.0,
        form: Form | None = None,
    ) -> None:
        super().__init__()
        self.heads, self.form, self.sr_ratio, self.pooled = heads, form or Form(), sr_ratio, pooled
        self.q = nn.Linear(dim, dim, bias=qkv_bias)
        self.kv = nn.Linear(dim, 2 * dim, bias=qkv_bias)
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(proj_drop)
        if pooled or sr_ratio > 1:
            side = 1 if pooled else sr_ratio
            self.sr = nn.Conv2d(dim, dim, kernel_size=side, stride=side)
            self.norm = nn.LayerNorm(dim)
        self.dwc = _branch(_check_heads(dim, heads), kernel_size)
        self.scale = nn.Parameter(torch.zeros(1, 1, dim))
        self.positional_encoding = nn.Parameter(torch.zeros(1, tokens // sr_ratio**2, dim))

    def _reduce(self, x: Tensor, grid: Grid) -> Tensor:
        if not self.pooled and self.sr_ratio == 1:
            return x
        feature_map = x.transpose(1, 2).reshape(x.shape[0], x.shape[2], *grid)
        if self.pooled:
            feature_map = F.adaptive_avg_pool2d(feature_map, 7)
        reduced = self.norm(self.sr(feature_map).flatten(2).transpose(1, 2))
        return F.gelu(reduced) if self.pooled else reduced

    def forward(self, x: Tensor, height: int | None = None, width: int | None = None) -> Tensor:
        """Mix the tokens of x: [b t d] on a grid of height x width, square when not given."""
        if x.dim() != 3 or (height is None) != (width is None):
            raise UsageError("expected x [b t d], and height and width both or neither")
        grid = square(x.shape[1]) if height is None or width is None else (height, width)
        k, v = self.kv(self._reduce(x, grid)).chunk(2, dim=-1)
        y = mix(self.q(x), k, v, self.scale, self.positional_encoding, self.dwc, self.heads, grid, self.form)
        return self.proj_drop(self.proj(y))


def to_stripes(x: Tensor, grid: Grid, stripe: Grid) -> Tensor:
    """Cut [b (H W) d] into [(b stripes) (h w) d], stripes in row-major order."""
    b, _, d = x.shape
    (gh, gw), (sh, sw) = grid, stripe
    return x.reshape(b, gh // sh, sh, gw // sw, sw, d).transpose(2, 3).reshape(-1, sh * sw, d)


def from_stripes(x: Tensor, grid: Grid, stripe: Grid) -> Tensor:
    """Undo `to_stripes`."""
    (gh, gw), (sh, sw), d = grid, stripe, x.shape[-1]
    return x.reshape(-1, gh // sh, gw // sw, sh, sw, d).transpose(2, 3).reshape(-1, gh * gw, d)


class StripeFocusedAttention(nn.Module):
    """Attend linearly within stripes of the grid (FLatten-CSwin); the block makes q, k, v and projects.

    Keys: get_v [d 1 3 3], dwc [e 1 k k], scale, positional_encoding [1 (h w) d]. Upstream since e205a01 is
    right only where one stripe covers the grid (it reshapes stripes by the grid's token count), as in every
    published config.
    """

    def __init__(
        self,
        dim: int,
        grid: int | Grid,
        stripe: Grid,
        heads: int,
        *,
        kernel_size: int = 5,
        form: Form | None = None,
    ) -> None:
        super().__init__()
        self.heads, self.form, self.stripe = heads, form or Form(), stripe
        self.grid = (grid, grid) if isinstance(grid, int) else grid
        if self.grid[0] % stripe[0] or self.grid[1] % stripe[1]:
            raise UsageError(
                f"stripes of {stripe[0]} x {stripe[1]} do not tile a grid of {self.grid[0]} x {self.grid[1]}"
            )
        self.get_v = nn.Conv2d(dim, dim, 3, padding=1, groups=dim)
        self.dwc = _branch(_check_heads(dim, heads), kernel_size)
        self.scale = nn.Parameter(torch.zeros(1, 1, dim))
        self.positional_encoding = nn.Parameter(torch.zeros(1, stripe[0] * stripe[1], dim))

    def forward(self, qkv: Tensor) -> Tensor:
        """Mix qkv: [3 b (H W) d]; returns [b (H W) d]. The lepe branch `get_v` stays within the stripe, too."""
        q, k, v = (to_stripes(x, self.grid, self.stripe) for x in qkv.unbind(0))
        y = mix(q, k, v, self.scale, self.positional_encoding, self.dwc, self.heads, self.stripe, self.form)
        lepe = depthwise(v, self.stripe, self.get_v, 1)
        return from_stripes(y + lepe, self.grid, self.stripe)
