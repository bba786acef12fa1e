"""The MLP of a block, plain or gated."""

from __future__ import annotations

from torch import Tensor, nn

from vitconv.vit.activation import activation
from vitconv.vit.config import ViTConfig
from vitconv.vit.norm import Norm


class Mlp(nn.Module):
    """plain: down(norm(act(up(x)))). Gated: down(norm(act(gate(x)) * up(x))) (Shazeer, GLU variants, 2020).

    With the activation silu the gated form is SwiGLU. The norm is sub-LN's (Wang et al., Magneto, 2022) and
    is absent in most networks.
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        d, m, bias, facts = config.width, config.mlp_width, config.mlp_bias, config.facts
        self.act = activation(facts.activation or "")
        self.up = nn.Linear(d, m, bias=bias)
        self.gate = nn.Linear(d, m, bias=bias) if config.gated else None
        kind = facts.norm_kind or "layernorm"
        self.norm = Norm(m, facts.norm_eps or 0.0, kind, config.norm_bias) if config.mlp_norm else nn.Identity()
        self.down = nn.Linear(m, d, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """Map x: [b t d], float, to [b t d]."""
        hidden = self.act(self.up(x)) if self.gate is None else self.act(self.gate(x)) * self.up(x)
        return self.down(self.norm(hidden))
