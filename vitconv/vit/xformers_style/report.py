"""The ViT of the first public report: the user's own embeddings and head around the factory's stack.

Source: facebookresearch/xformers, the issue "ViT-B ImageNet MAE + Deepnorm training instability". The
backbone can be this package's twin or the real library's.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class PatchEmbed(nn.Module):
    """Cut an image into patches with one convolution, under the name `proj`."""

    def __init__(self, image: tuple[int, int], patch: tuple[int, int], channels: int, width: int) -> None:
        super().__init__()
        self.grid_size = (image[0] // patch[0], image[1] // patch[1])
        self.num_patches = self.grid_size[0] * self.grid_size[1]
        self.proj = nn.Conv2d(channels, width, patch, patch)

    def forward(self, images: Tensor) -> Tensor:
        """Map images: [b c height width], float, to [b n d]."""
        return self.proj(images).flatten(2).transpose(1, 2)


class ReportViT(nn.Module):
    """Class token and positions ahead of `backbone`; LayerNorm (eps 1e-6) and Linear on all tokens after it.

    At ViT-B it has 86 567 656 parameters, as timm's. Sizes in pixels.
    """

    def __init__(
        self,
        backbone: nn.Module,
        width: int,
        *,
        image: tuple[int, int] = (224, 224),
        patch: tuple[int, int] = (16, 16),
        channels: int = 3,
        classes: int = 1000,
    ) -> None:
        super().__init__()
        self.image_size = image
        self.patch_embed = PatchEmbed(image, patch, channels, width)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embed = nn.Parameter(torch.zeros(1, self.patch_embed.num_patches + 1, width))
        self.backbone = backbone
        self.head = nn.Sequential(nn.LayerNorm(width, eps=1e-6), nn.Linear(width, classes))

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        """Map images: [b c height width], float.

        Returns "representation" [b t d] (detached), "logits" [b t o] of every token, and "CLS" [b o] of the
        first.
        """
        patches = self.patch_embed(images)
        x = torch.cat((self.cls_token.expand(len(images), -1, -1), patches), dim=1) + self.pos_embed
        representation = self.backbone(x)
        logits = self.head(representation)
        return {"representation": representation.detach(), "logits": logits, "CLS": logits[:, 0]}
