"""CoCa's attentional pooler: queries of a width of their own attend to the tokens, a norm and a projection follow.

Source: mlfoundations/open_clip, src/open_clip/transformer.py, AttentionalPooler and VisionTransformer, 3.3.0; Yu et
al., CoCa, 2022, section 3.2.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vitconv.vit.config import ViTConfig
from vitconv.vit.norm import Norm


class AttentionalPooler(nn.Module):
    """Answer k queries of width v from the tokens of width d; what is pooled of the answers is projected to o."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        d, v, facts = config.width, config.query_width, config.facts
        self.heads = facts.pool_heads or 1
        self.queries = nn.Parameter(torch.zeros(config.queries, v))
        self.norm_q, self.norm_k = (Norm(n, facts.norm_eps or 0.0, "layernorm") for n in (v, d))
        self.q, self.k, self.v, self.out = nn.Linear(v, v), nn.Linear(d, v), nn.Linear(d, v), nn.Linear(v, v)
        self.norm = Norm(v, facts.final_norm_eps or 0.0, "layernorm")
        self.proj = nn.Parameter(torch.zeros(v, config.query_out)) if config.query_out else None

    def forward(self, x: Tensor) -> Tensor:
        """Map the stream x: [b t d], float, to the answers [b k v]."""
        x, asked = self.norm_k(x), self.norm_q(self.queries).expand(len(x), -1, -1)
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in (self.q(asked), self.k(x), self.v(x)))
        heads = (q.shape[-1] ** -0.5 * q @ k.transpose(-2, -1)).softmax(-1) @ v
        y: Tensor = self.norm(self.out(heads.transpose(1, 2).flatten(2)))
        return y

    def projected(self, pooled: Tensor) -> Tensor:
        """Project what was pooled, [b v], to [b o]."""
        return pooled if self.proj is None else pooled @ self.proj
