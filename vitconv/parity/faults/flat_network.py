"""The network of `flat`: modules of the reference of stages, in one row."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from vitconv.parity.faults.flat import FlatConfig
from vitconv.vit.norm import Norm
from vitconv.vit.stages.attention import Grid
from vitconv.vit.stages.block import StageBlock
from vitconv.vit.stages.config import StagesConfig
from vitconv.vit.stages.model import Embed, Entry, Pool, end_of


class Way(Entry):
    """What leads into a stage from a map of a known size, behind the norm at the end of the stage before."""

    def __init__(self, config: StagesConfig, s: int, grid: Grid) -> None:
        super().__init__(config, s)
        self.grid = grid
        self.before = end_of(config, s - 1) if s else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Map [b t before] to [b t d]."""
        return self.enter(self.before(x), self.grid)[0]


class FlatEmbed(Embed):
    """The patch projection, and what leads into the first stage."""

    def __init__(self, config: StagesConfig) -> None:
        super().__init__(config)
        self.way = Way(config, 0, (0, 0))

    def forward(self, images: Tensor) -> Any:
        """Return the tokens [b t d] of images [b c height width]."""
        x, grid = super().forward(images)
        return self.way.enter(x, grid)[0]


class FlatBlock(StageBlock):
    """A block on a map of a known size, and what leads to it from the block before."""

    def __init__(self, config: StagesConfig, place: tuple[int, int], grid: Grid, way: Way | None) -> None:
        super().__init__(config, *place)
        self.grid, self.way = grid, way

    @property
    def placement(self) -> str:
        """Where the norms stand: pre or res-post."""
        return "res-post" if self.post else "pre"

    @placement.setter
    def placement(self, name: str) -> None:
        self.post = name == "res-post"

    def forward(self, x: Tensor, grid: Grid | None = None) -> Tensor:
        """Map [b t d] to [b t d]; from the stage before [b t before]."""
        x = x if self.way is None else self.way(x)
        return super().forward(x, grid or self.grid)


class FlatStages(nn.Module):
    """embed, blocks, trunk_norm, norm, pool, head: each fed what the one before returns, as in a plain ViT."""

    def __init__(self, flat: FlatConfig) -> None:
        super().__init__()
        self.config, config = flat, flat.stages
        self.embed = FlatEmbed(config)
        image = torch.empty(1, flat.channels, *flat.image_size, device="meta")
        with torch.device("meta"):
            x, grid = Embed(config)(image)
            x, grid = Entry(config, 0).enter(x, grid)
        blocks = []
        for s, i in flat.blocks:
            way = None
            if s and not i:
                way = Way(config, s, grid)
                with torch.device("meta"):
                    x, grid = Way(config, s, grid).enter(x, grid)
            blocks.append(FlatBlock(config, (s, i), grid, way))
        self.blocks = nn.ModuleList(blocks)
        last = len(config.depths) - 1
        self.trunk_norm = end_of(config, last)
        self.norm = Norm(config.width(last), config.facts.final_norm_eps or 0.0) if flat.norm else nn.Identity()
        self.pool = Pool(config)
        self.head = nn.Linear(config.width(last), flat.classes, flat.head_bias) if flat.classes else None

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits [b o] of images [b c height width]; without a head the features [b d]."""
        x = self.embed(images)
        for block in self.blocks:
            x = block(x)
        pooled = self.pool(self.norm(self.trunk_norm(x)))
        return pooled if self.head is None else self.head(pooled)
