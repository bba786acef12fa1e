"""One block: two residual branches, and the places where their norms can stand, or none."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from vitconv.layout.semantics import FOCUSED
from vitconv.vit.attention import Attention, FocusedAttention
from vitconv.vit.config import ViTConfig
from vitconv.vit.mlp import Mlp
from vitconv.vit.norm import Norm
from vitconv.vit.positions import Turn


class Block(nn.Module):
    """Apply attention, then the MLP, each as a branch f with norm n and LayerScale g (1 when absent).

    pre:      x + g f(n(x))            (Xiong et al., On Layer Normalization, 2020)
    post:     n(x + g f(x))            (Vaswani et al., 2017)
    deepnorm: n(alpha x + g f(x))      (Wang et al., DeepNet, 2022)
    res-post: x + g n(f(x))            (Liu et al., Swin V2, 2021)
    none:     x + g f(x)               (Bachlechner et al., ReZero, 2020; Huang et al., T-Fixup, 2020)

    With a `twin` two branches of each kind read the same stream, and both are added to it (Touvron et al., Three things
    everyone should know about Vision Transformers, 2022, section 3).

    With `kv_normalised` false, keys and values of a pre-norm block read x instead of n(x) (xformers <=
    0.0.9).
    """

    def __init__(self, config: ViTConfig, *, twin: bool = True) -> None:
        super().__init__()
        d, facts = config.width, config.facts
        self.placement = facts.norm_placement
        self.alpha = 1.0 if facts.residual_alpha is None else facts.residual_alpha
        self.raw_kv = facts.kv_normalised is False
        kind, eps = facts.norm_kind or "layernorm", facts.norm_eps or 0.0
        # Without norms the formula is that of pre-norm, whose n(x) is x.
        self.norm1, self.norm2 = (
            Norm(d, eps, kind, config.norm_bias) if config.block_norms else nn.Identity() for _ in range(2)
        )
        focused = facts.attention in FOCUSED
        self.attn: nn.Module = FocusedAttention(config) if focused else Attention(config)
        self.ls1 = nn.Parameter(torch.ones(d)) if config.layer_scale else None
        self.mlp = Mlp(config)
        self.ls2 = nn.Parameter(torch.ones(d)) if config.layer_scale else None
        self.twin = Block(config, twin=False) if config.twin and twin else None

    def forward(self, x: Tensor, turn: Turn | None = None, bias: Tensor | None = None) -> Tensor:
        """Map the stream x: [b t d], float, to the stream after this block, [b t d]; see `Attention` for the rest."""
        # A plain ViT's attention has nothing beside the stream, and may be replaced by one that knows no more.
        more = () if turn is None and bias is None else (turn, bias)

        def attend(normed: Tensor) -> Tensor:
            return self.attn(normed, x if self.raw_kv else normed, *more)

        y = self._branch(x, attend, self.norm1, self.ls1)
        if self.twin is None:
            return self._branch(y, self.mlp, self.norm2, self.ls2)
        other = self.twin.norm1(x)
        y = y + _scaled(self.twin.attn(other, other, *more), self.twin.ls1)
        second = _scaled(self.twin.mlp(self.twin.norm2(y)), self.twin.ls2)
        return self._branch(y, self.mlp, self.norm2, self.ls2) + second

    def _branch(self, x: Tensor, f: Callable[[Tensor], Tensor], n: nn.Module, gain: Tensor | None) -> Tensor:
        g = 1.0 if gain is None else gain
        if self.placement in ("pre", "none"):
            return x + g * f(n(x))
        if self.placement == "res-post":
            return x + g * n(f(x))
        return n(self.alpha * x + g * f(x))


def _scaled(x: Tensor, gain: Tensor | None) -> Tensor:
    return x if gain is None else gain * x
