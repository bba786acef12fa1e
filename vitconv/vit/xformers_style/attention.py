"""Multi-head attention of the factory: fused or separate projections, rotary positions, two dropouts."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vitconv.vit.xformers_style.config import BlockConfig
from vitconv.vit.xformers_style.release import Environment, Release


class FusedProjection(nn.Module):
    """Project with one weight [3d d] and one bias [3d], rows in the order query, key, value (<= 0.0.11)."""

    def __init__(self, width: int, bias: bool) -> None:
        super().__init__()
        self.in_proj_weight = nn.Parameter(torch.empty(3 * width, width))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * width)) if bias else None
        nn.init.xavier_uniform_(self.in_proj_weight, gain=0.5**0.5)

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Project three [b t d], float, each with its own third of the rows."""
        if query is key and key is value:
            packed = query @ self.in_proj_weight.T
            q, k, v = (packed if self.in_proj_bias is None else packed + self.in_proj_bias).chunk(3, dim=-1)
            return q, k, v
        weights = self.in_proj_weight.chunk(3)
        biases: tuple[Tensor | float, ...] = (0.0,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        q, k, v = (x @ w.T + b for x, w, b in zip((query, key, value), weights, biases, strict=True))
        return q, k, v


class LinearProjection(nn.Module):
    """Project with three Linear layers (>= 0.0.12); with `separate` False they share one weight."""

    def __init__(self, width: int, bias: tuple[bool, ...], separate: bool) -> None:
        super().__init__()
        self.q_proj = nn.Linear(width, width, bias=bias[0])
        self.k_proj = nn.Linear(width, width, bias=bias[1])
        self.v_proj = nn.Linear(width, width, bias=bias[2])
        if not separate:
            self.k_proj.weight = self.v_proj.weight = self.q_proj.weight

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Project three [b t d], float."""
        return self.q_proj(query), self.k_proj(key), self.v_proj(value)


class Rotary(nn.Module):
    """Rotate queries and keys by their token index, halves paired, base 10000 (Su et al., RoFormer, 2021).

    angle(t, j) = t * 10000^(-2j/e); the saved buffer `inv_freq` is [e/2]. Tables are built in the buffer's
    dtype and, since 0.0.12, in the activations'.
    """

    def __init__(self, width: int, in_activation_dtype: bool) -> None:
        super().__init__()
        self.in_activation_dtype = in_activation_dtype
        self.register_buffer("inv_freq", 1.0 / (10000 ** (torch.arange(0, width, 2).float() / width)))

    def forward(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Rotate q and k: [b h t e], float."""
        dtype = k.dtype if self.in_activation_dtype else self.inv_freq.dtype
        time = torch.arange(k.shape[-2], device=k.device).to(torch.float32 if self.in_activation_dtype else dtype)
        angle = torch.outer(time, self.inv_freq.to(dtype)).repeat(1, 2)
        cos, sin = angle.cos(), angle.sin()
        if self.in_activation_dtype:
            cos, sin = cos.to(dtype), sin.to(dtype)
        return _rotate(q, cos, sin), _rotate(k, cos, sin)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class DotProduct(nn.Module):
    """softmax(q k^T / sqrt(e)) v with dropout on the probabilities; q is divided before the product.

    `causal`: a token sees itself and those before it.
    """

    def __init__(self, dropout: float, causal: bool = False) -> None:
        super().__init__()
        self.attn_drop, self.causal = nn.Dropout(dropout), causal

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend over [b h t e], float."""
        logits = (q / k.shape[-1] ** 0.5) @ k.transpose(-2, -1)
        if self.causal:
            later = torch.ones(logits.shape[-2:], dtype=torch.bool, device=logits.device).triu(1)
            logits = logits.masked_fill(later, float("-inf"))
        return self.attn_drop(logits.softmax(-1)) @ v


class MultiHead(nn.Module):
    """proj(concat_h attention(q_h, k_h, v_h)), then the residual dropout."""

    def __init__(self, config: BlockConfig, release: Release, environment: Environment) -> None:
        super().__init__()
        d, self.heads = config.width, config.heads
        works = release.attention_dropout_works(environment)
        self.attention = DotProduct(config.attention_dropout if works else 0.0, config.causal)
        self.in_proj_container = (
            FusedProjection(d, config.bias[0])
            if release.fused_projection
            else LinearProjection(d, config.bias, config.separate)
        )
        self.rotary_embeddings = (
            Rotary(d // config.heads, release.rotary_in_activation_dtype) if config.rotary else None
        )
        self.resid_drop = nn.Dropout(config.residual_dropout)
        self.proj = nn.Linear(d, d, bias=config.bias[3])
        if self.proj.bias is not None:
            nn.init.zeros_(self.proj.bias)

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attend from query to key and value, all [b t d], float; the result is [b t d]."""
        projected = self.in_proj_container(query, key, value)
        q, k, v = (x.unflatten(-1, (self.heads, -1)).transpose(1, 2) for x in projected)
        if self.rotary_embeddings is not None:
            q, k = self.rotary_embeddings(q, k)
        y = self.attention(q, k, v).transpose(1, 2).flatten(2)
        return self.resid_drop(self.proj(y))
