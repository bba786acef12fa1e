"""The reference ViT: its state dict has the canonical names and shapes, and nothing else.

It is written to be read and to be right: no fused kernels, no dropout, no state. Every fact it depends on is
in `ViTConfig.facts`.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from vitconv.vit.activation import activation
from vitconv.vit.block import Block
from vitconv.vit.config import ViTConfig
from vitconv.vit.embed import Embed
from vitconv.vit.norm import Norm
from vitconv.vit.pooler import AttentionalPooler
from vitconv.vit.positions import Turn, relative_bias
from vitconv.vit.turns import mixed, rope_of


class Pool(nn.Module):
    """Reduce the stream to what the head sees: pick or average tokens, then norm and dense, if present.

    map: the answer of an attention-pooling head to its probe (Zhai et al., 2022), over the patches, or over all tokens
    (map-prefix). token: the class token. avg: the mean
    over the patches. avg-prefix: the mean over all tokens. first: the first token, a patch where there is no class
    token. none: the stream. The dense layer is followed by tanh, as
    BERT's pooler is.
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        d, facts = config.width, config.facts
        self.kind, self.prefix = facts.pooling, config.prefix
        kind, eps = facts.norm_kind or "layernorm", facts.final_norm_eps or 0.0
        self.norm = Norm(d, eps, kind, config.norm_bias) if config.pool_norm else nn.Identity()
        self.dense = nn.Linear(d, config.pool_dense) if config.pool_dense else None
        if config.pool_map:
            u, w = config.pool_map, config.pool_mlp
            self.heads, self.act = facts.pool_heads or config.heads, activation(facts.activation or "")
            self.probe = nn.Parameter(torch.zeros(d))
            self.q, self.k, self.v = (nn.Linear(d, u) for _ in range(3))
            self.out = nn.Linear(u, d)
            self.mlp_norm = Norm(d, eps, kind)
            self.up, self.down = nn.Linear(d, w), nn.Linear(w, d)

    def forward(self, x: Tensor) -> Tensor:
        """Pool x: [b t d], float, to [b d]; pooling none keeps [b t d]."""
        if self.kind in ("token", "first"):
            x = x[:, 0]
        elif self.kind == "avg":
            x = x[:, self.prefix :].mean(1)
        elif self.kind == "avg-prefix":
            x = x.mean(1)
        elif self.kind in ("map", "map-prefix"):
            x = self._attended(x[:, self.prefix if self.kind == "map" else 0 :])
        x = self.norm(x)
        return x if self.dense is None else self.dense(x).tanh()

    def _attended(self, x: Tensor) -> Tensor:
        q, k, v = (
            y.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for y in (self.q(self.probe.expand(len(x), 1, -1)), self.k(x), self.v(x))
        )
        heads = (q.shape[-1] ** -0.5 * q @ k.transpose(-2, -1)).softmax(-1) @ v
        y = self.out(heads.transpose(1, 2).flatten(2))[:, 0]
        return y + self.down(self.act(self.up(self.mlp_norm(y))))


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
        self.trunk_dense = nn.Linear(d, d) if config.trunk_dense else None
        self.norm = norm(config.norm, facts.final_norm_eps)
        self.norm_cls = norm(True, facts.final_norm_eps) if config.norm_cls else None
        self.rope = rope_of(config)
        shared = config.relative if config.relative_shared else 0
        self.rel_pos, self.rel_pos_cls = (
            nn.Parameter(torch.zeros(rows, config.heads)) if shared else None for rows in (shared, 3)
        )
        for name, shapes in config.inert.items():
            self.add_module(name, inert(shapes))
        self.coca = AttentionalPooler(config) if config.queries else None
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
            turn, grid = None, (0, 0)
            if self.embed.patch is not None:
                grid = (images.shape[2] // self.config.patch[0], images.shape[3] // self.config.patch[1])
            if self.rope is not None:
                turn = self.rope(grid, x)
            for block in self.blocks:
                x = self.step(block, x, grid, turn)
            x = self.normed(x)
            if self.coca is not None:
                return self.coca.projected(self.pool(self.coca(x)))
            pooled = self.pool(x)
            if self.head is None:
                return pooled
            logits = self.head(pooled)
            return logits if self.head_dist is None else (logits + self.head_dist(x[:, 1])) / 2

    def step(self, block: nn.Module, x: Tensor, grid: tuple[int, int], turn: Turn | None) -> Tensor:
        """Return the stream behind a block: [b t d] of x: [b t d], float.

        `turn` is that of the whole network, `grid` the patches' rows and columns, for what a block has of its own.
        """
        bias = self._bias(block, grid)
        own = self._turn(block, grid) if turn is None else turn
        return block(x) if own is None and bias is None else block(x, own, bias)  # type: ignore[no-any-return]

    def _bias(self, block: nn.Module, grid: tuple[int, int]) -> Tensor | None:
        table, rows = self.rel_pos, self.rel_pos_cls
        if table is None:
            table, rows = getattr(block.attn, "rel_pos", None), getattr(block.attn, "rel_pos_cls", None)
        return None if table is None or rows is None else relative_bias(table, rows, grid)

    def _turn(self, block: nn.Module, grid: tuple[int, int]) -> Turn | None:
        frequencies = getattr(block.attn, "rope", None)
        columns_first = self.config.facts.rope_order == "columns"
        return None if frequencies is None else mixed(frequencies, grid, columns_first)

    def normed(self, x: Tensor) -> Tensor:
        """Map the stream after the last block, x: [b t d], float, to what is pooled, [b t d]."""
        x = self.trunk_norm(x)
        if self.trunk_dense is not None:
            x = self.trunk_dense(x).tanh()
        if self.norm_cls is None:
            return self.norm(x)
        before = self.config.prefix
        return torch.cat([self.norm_cls(x[:, :before]), self.norm(x[:, before:])], 1)


def inert(shapes: Mapping[str, tuple[int, ...]]) -> nn.Module:
    """Return a module that holds tensors by dotted names and takes no part in the function."""
    root = nn.Module()
    for name, shape in shapes.items():
        *path, last = name.split(".")
        at = root
        for part in path:
            if part not in dict(at.named_children()):
                at.add_module(part, nn.Module())
            at = at.get_submodule(part)
        at.register_parameter(last, nn.Parameter(torch.zeros(shape)))
    return root


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
