"""The ViT of the first public report, around the real xformers factory (facebookresearch/xformers#219)."""

from __future__ import annotations

import torch
from torch import nn


class ReportViT(nn.Module):
    """patch_embed.proj, cls_token, pos_embed, backbone, and a head of LayerNorm and Linear on the class token."""

    def __init__(
        self, img: int, patch: int, dim: int, depth: int, heads: int, classes: int, style: str = "pre"
    ) -> None:
        super().__init__()
        from timm.layers import PatchEmbed
        from xformers.factory import xFormer, xFormerConfig

        self.patch_embed = PatchEmbed(img, patch, 3, dim)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos_embed = nn.Parameter(torch.zeros(1, self.patch_embed.num_patches + 1, dim))
        block = {
            "block_type": "encoder",
            "num_layers": depth,
            "dim_model": dim,
            "residual_norm_style": style,
            "multi_head_config": {"num_heads": heads, "attention": {"name": "scaled_dot_product", "dropout": 0.0}},
            "feedforward_config": {"name": "MLP", "dropout": 0.0, "activation": "gelu", "hidden_layer_multiplier": 4},
        }
        self.backbone = xFormer.from_config(xFormerConfig([block]))
        self.head = nn.Sequential(nn.LayerNorm(dim, eps=1e-6), nn.Linear(dim, classes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits: [b o]."""
        tokens = self.patch_embed(x)
        tokens = torch.cat((self.cls_token.expand(len(x), -1, -1), tokens), dim=1) + self.pos_embed
        return self.head(self.backbone(tokens))[:, 0]
