"""The reference ViT: its state dict has the canonical names and shapes, and nothing else.

It is written to be read and to be right: no fused kernels, no dropout, no state. Every fact it depends on is
in `ViTConfig.facts`.
"""

from __future__ import annotations

from collections.abc import MutableMapping

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from vitconv.vit.block import Block
from vitconv.vit.config import ViTConfig
from vitconv.vit.embed import Embed
from vitconv.vit.norm import Norm


class Pool(nn.Module):
    """Reduce the stream to what the head sees: pick or average tokens, then norm and dense, if present.

    token: the class token. avg: the mean over the patches. avg-prefix: the mean over all tokens. none: the
    stream. The dense layer is followed by tanh, as BERT's pooler is.
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        d, facts = config.width, config.facts
        self.kind, self.prefix = facts.pooling, config.prefix
        kind, eps = facts.norm_kind or "layernorm", facts.final_norm_eps or 0.0
        self.norm = Norm(d, eps, kind, config.norm_bias) if config.pool_norm else nn.Identity()
        self.dense = nn.Linear(d, config.pool_dense) if config.pool_dense else None

    def forward(self, x: Tensor) -> Tensor:
        """Pool x: [b t d], float, to [b d]; pooling none keeps [b t d]."""
        if self.kind == "token":
            x = x[:, 0]
        elif self.kind == "avg":
            x = x[:, self.prefix :].mean(1)
        elif self.kind == "avg-prefix":
            x = x.mean(1)
        x = self.norm(x)
        return x if self.dense is None else self.dense(x).tanh()


class ViT(nn.Module):
    """The plain Vision Transformer (Dosovitskiy et al., 2021), in every variation its tensors can say.

    logits = head(pool(norm(blocks(embed(images))))); with a distillation head, the mean of head(class token)
    and head_dist(distillation token) (Touvron et al., DeiT, 2021, section 4). Without a head the pooled
    features.
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        d, facts = config.width, config.facts
        kind = facts.norm_kind or "layernorm"
        self.config = config
        self.embed = Embed(config)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.depth))

        def norm(present: bool, eps: float | None) -> nn.Module:
            return Norm(d, eps or 0.0, kind, config.norm_bias) if present else nn.Identity()

        self.trunk_norm = norm(config.trunk_norm, facts.norm_eps)
        self.norm = norm(config.norm, facts.final_norm_eps)
        self.pool = Pool(config)
        self.head = nn.Linear(config.pool_dense or d, config.classes, config.head_bias) if config.classes else None
        self.head_dist = nn.Linear(d, config.classes_dist, config.head_bias) if config.classes_dist else None

    def forward(
        self, images: Tensor, taps: MutableMapping[str, Tensor] | None = None, masked: Tensor | None = None
    ) -> Tensor:
        """Return the logits [b o] of images: [b c height width], float; without a head the features [b d].

        A bare trunk takes tokens [b t d] in place of images.

        `taps` receives the intermediates by canonical name: embed, blocks.{i} (the stream after the block),
        blocks.{i}.attn and blocks.{i}.mlp (the branch's output, before LayerScale, residual and any later
        norm), norm, pool, head. `masked`: see `Embed`.
        """
        with _Recorder(self, taps):
            x = self.embed(images, masked)
            for block in self.blocks:
                x = block(x)
            x = self.norm(self.trunk_norm(x))
            pooled = self.pool(x)
            if self.head is None:
                return pooled
            logits = self.head(pooled)
            return logits if self.head_dist is None else (logits + self.head_dist(x[:, 1])) / 2


class _Recorder:
    """Write the outputs of the named modules into `taps` while the context lasts."""

    def __init__(self, model: ViT, taps: MutableMapping[str, Tensor] | None) -> None:
        self.model, self.taps = model, taps
        self.handles: list[RemovableHandle] = []

    def __enter__(self) -> None:
        taps = self.taps
        if taps is None:
            return
        modules: dict[str, nn.Module] = {
            "embed": self.model.embed,
            "norm": self.model.norm,
            "pool": self.model.pool,
        }
        for i, block in enumerate(self.model.blocks):
            modules |= {f"blocks.{i}": block, f"blocks.{i}.attn": block.attn, f"blocks.{i}.mlp": block.mlp}
        if self.model.head is not None:
            modules["head"] = self.model.head
        for name, module in modules.items():

            def keep(_module: nn.Module, _inputs: object, output: Tensor, name: str = name) -> None:
                taps[name] = output

            self.handles.append(module.register_forward_hook(keep))

    def __exit__(self, *_error: object) -> None:
        for handle in self.handles:
            handle.remove()
