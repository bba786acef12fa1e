"""Multi-head attention, written out (Vaswani et al., 2017, section 3.2)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vitconv.kernels.focused.module import Form
from vitconv.layout.semantics import Semantics
from vitconv.vit.config import ViTConfig
from vitconv.vit.norm import Norm
from vitconv.vit.positions import Turn, turned


class FocusedAttention(nn.Module):
    """Attend by focused linear attention (Han et al., FLatten Transformer, 2023), in the formulation of the facts.

    The tensors of a plain ViT have no scale, no position table and no depthwise filter of their own: the scale is
    that of FLatten's initialisation, zero before softplus, and the others are absent. All tokens are keys.
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        d, a = config.width, config.attention_width
        self.heads, self.causal = config.heads, False
        # What softmax attention would scale its logits by; nothing here does.
        self.scale = config.head_width**-0.5
        self.q_norm = self.k_norm = self.norm = nn.Identity()
        self.form = form_of(config.facts)
        self.q = nn.Linear(d, a, bias=config.q_bias)
        self.k = nn.Linear(d, a, bias=config.k_bias)
        self.v = nn.Linear(d, a, bias=config.v_bias)
        self.out = nn.Linear(a, d, bias=config.out_bias)

    def forward(self, queries: Tensor, others: Tensor, turn: Turn | None = None, bias: Tensor | None = None) -> Tensor:
        """Attend from `queries`: [b t d] to `others`: [b t d], float; the result is [b t d]. It takes no positions."""
        q, k, v = self.q(queries), self.k(others), self.v(others)
        scale = q.new_zeros(1, 1, q.shape[-1])
        return self.out(self.form.attend(q, k, v, scale, None, self.heads, torch.zeros_like(q)))


def form_of(facts: Semantics) -> Form:
    """Return the formulation that the facts name: `attention=focused-NAME`, its power, its eps."""
    variant = (facts.attention or "").removeprefix("focused-")
    return Form(variant, facts.focusing_factor or 3, facts.focused_eps, facts.focused_eps_mode)


class Attention(nn.Module):
    """Attend per head, then project: out(norm(concat_h softmax(s q_h k_h^T) v_h)).

    q, k and v are h blocks of e consecutive rows each; s is 1/sqrt(e) unless `attention_scale` says otherwise. With
    `attention_precision` float32 the products and their softmax are computed in that. With query and key norms, q_h and
    k_h are normalised over e before the product (Dehghani et al., ViT-22B, 2023).
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        d, a, e, facts = config.width, config.attention_width, config.head_width, config.facts
        kind = facts.norm_kind or "layernorm"
        self.heads, self.causal = config.heads, facts.attention == "causal"
        self.half = facts.rope_layout == "half"
        # Of some codebases' files: no part of the function.
        self.k_masked = nn.Parameter(torch.zeros(a)) if config.k_masked else None
        self.rel_pos, self.rel_pos_cls = (
            nn.Parameter(torch.zeros(rows, config.heads)) if config.relative and not config.relative_shared else None
            for rows in (config.relative, 3)
        )
        self.rope = nn.Parameter(torch.zeros(2, config.heads, e // 2)) if config.mixed else None
        self.scale = e**-0.5 if facts.attention_scale is None else facts.attention_scale
        self.rounded = facts.attention_precision == "float32"
        self.q = nn.Linear(d, a, bias=config.q_bias)
        self.k = nn.Linear(d, a, bias=config.k_bias)
        self.v = nn.Linear(d, a, bias=config.v_bias)
        if config.qk_norm:
            self.q_norm = Norm(e, facts.qk_norm_eps or 0.0, kind, config.qk_norm_bias)
            self.k_norm = Norm(e, facts.qk_norm_eps or 0.0, kind, config.qk_norm_bias)
        else:
            self.q_norm = self.k_norm = nn.Identity()
        self.norm = Norm(a, facts.norm_eps or 0.0, kind, config.norm_bias) if config.attn_norm else nn.Identity()
        self.out = nn.Linear(a, d, bias=config.out_bias)

    def forward(self, queries: Tensor, others: Tensor, turn: Turn | None = None, bias: Tensor | None = None) -> Tensor:
        """Attend from `queries`: [b t d] to `others`: [b t d], float; the result is [b t d].

        `turn` are the cosines and sines of rotary positions, `bias` [h t t] is added to the logits.
        Both are the same tensor in every ViT, except in xformers <= 0.0.9 with pre-norm: keys and values are
        projected from the stream that was not normalised.
        """
        q, k = self.q_norm(self._split(self.q(queries))), self.k_norm(self._split(self.k(others)))
        v = self._split(self.v(others))
        if turn is not None:
            q, k = turned(q, turn, self.half), turned(k, turn, self.half)
        q = self.scale * q
        logits = (q.float() @ k.float().transpose(-2, -1)) if self.rounded else q @ k.transpose(-2, -1)
        logits = logits if bias is None else logits + bias.to(logits)
        if self.causal:
            ahead = torch.ones(logits.shape[-2:], dtype=torch.bool, device=logits.device).triu(1)
            logits = logits.masked_fill(ahead, float("-inf"))
        heads = logits.softmax(-1).to(v) @ v
        return self.out(self.norm(heads.transpose(1, 2).flatten(2)))

    def _split(self, x: Tensor) -> Tensor:
        """Return [b t (h e)] as [b h t e]."""
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)
