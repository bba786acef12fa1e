"""From an image to the stream: patches, tokens, positions."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vitconv.errors import UsageError
from vitconv.layout.sincos import sincos
from vitconv.vit.config import ViTConfig
from vitconv.vit.norm import Norm


class PixelNorm(nn.Module):
    """Normalise all pixels of a patch together (lucidrains/vit-pytorch, vit.py, since 1.2)."""

    def __init__(self, shape: tuple[int, ...], eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight, self.bias = nn.Parameter(torch.ones(shape)), nn.Parameter(torch.zeros(shape))

    def forward(self, images: Tensor) -> Tensor:
        """Cut images: [b c height width] into patches and norm them: [b n (c p q)]."""
        sides = self.weight.shape[1:]
        x = nn.functional.unfold(images, sides, stride=sides).transpose(1, 2)
        return nn.functional.layer_norm(x, x.shape[-1:], self.weight.flatten(), self.bias.flatten(), self.eps)


class Embed(nn.Module):
    """Cut the image into patches, add their positions, and put class, distillation and register tokens ahead.

    Every token has its own position row or none: x = [cls + pos_cls; dist + pos_dist; reg + pos_reg; patch +
    pos] (Dosovitskiy et al., 2021, equation 1; Touvron et al., DeiT, 2021; Darcet et al., registers, 2023). A
    table may be the sum of one over rows and one over columns (Dehghani et al., NaViT, 2023, section 2.1).
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        d, c, facts = config.width, config.channels, config.facts
        self.positions = config.positions or config.rows * config.columns

        def row(present: bool, *shape: int) -> nn.Parameter | None:
            return nn.Parameter(torch.zeros(*shape)) if present else None

        self.cls, self.pos_cls = row(config.cls, d), row(config.pos_cls, d)
        self.dist, self.pos_dist = row(config.dist, d), row(config.pos_dist, d)
        self.reg, self.pos_reg = (
            row(config.registers > 0, config.registers, d),
            row(config.pos_reg, config.registers, d),
        )
        self.mask = row(config.mask, d)
        self.pos = row(config.positions > 0, config.positions, d)
        self.pos_y, self.pos_x = (row(n > 0, n, d) for n in (config.rows, config.columns))
        eps = facts.embed_norm_eps or 0.0
        self.pixel_norm = PixelNorm((c, *config.patch), eps) if config.pixel_norm else None
        # Made anew for every image, as the codebases do that store none.
        made = facts.position == "sincos" and not self.positions
        self.made, self.sides = facts.sincos_rule if made else None, config.patch
        self.patch_norm = Norm(d, eps, facts.norm_kind or "layernorm", config.norm_bias) if config.patch_norm else None
        self.patch = nn.Conv2d(c, d, config.patch, config.patch, bias=config.patch_bias) if c else None
        kind = facts.norm_kind or "layernorm"
        self.norm = Norm(d, facts.embed_norm_eps or 0.0, kind, config.norm_bias) if config.embed_norm else nn.Identity()

    def _patches(self, images: Tensor) -> Tensor:
        assert self.patch is not None
        if self.pixel_norm is None:
            x = self.patch(images).flatten(2).transpose(1, 2)
        else:
            weight = self.patch.weight.flatten(1)
            x = nn.functional.linear(self.pixel_norm(images), weight, self.patch.bias)
        return x if self.patch_norm is None else self.patch_norm(x)

    def forward(self, images: Tensor, masked: Tensor | None = None) -> Tensor:
        """Embed images: [b c height width], float; the stream is [b t d], t = prefix + n.

        `masked`: [b n], bool; where true, the mask token takes the patch's place (its position stays).

        Raises:
            UsageError: the image does not give the n patches of the position table, or patches are masked and
                there is no mask token.
        """
        x = images if self.patch is None else self._patches(images)
        if self.positions and x.shape[1] != self.positions:
            size = " x ".join(str(n) for n in images.shape[2:])
            raise UsageError(
                f"an image of {size} pixels gives {x.shape[1]} patches, the position table has {self.positions}"
                " rows; resize the image or the table"
            )
        if masked is not None:
            if self.mask is None:
                raise UsageError("patches are masked, but this network has no mask token (embed.mask)")
            x = torch.where(masked.unsqueeze(-1), self.mask, x)
        if self.pos is not None:
            x = x + self.pos
        if self.made is not None and self.patch is not None:
            grid = (images.shape[2] // self.sides[0], images.shape[3] // self.sides[1])
            x = x + torch.as_tensor(sincos(self.made, grid, x.shape[-1])).to(x)
        if self.pos_y is not None and self.pos_x is not None:
            x = x + (self.pos_y[:, None] + self.pos_x).flatten(0, 1)
        prefix = [
            (token if place is None else token + place).reshape(-1, x.shape[-1]).expand(len(x), -1, -1)
            for token, place in (
                (self.cls, self.pos_cls),
                (self.dist, self.pos_dist),
                (self.reg, self.pos_reg),
            )
            if token is not None
        ]
        return self.norm(torch.cat([*prefix, x], dim=1))
