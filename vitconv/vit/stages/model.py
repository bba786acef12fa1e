"""The reference network of stages: its state dict has the canonical names and shapes, and nothing else."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vitconv.errors import Refused, UsageError
from vitconv.layout.canonical_stages import NEIGHBOURS
from vitconv.layout.windows import overlap, patch_stride
from vitconv.vit.norm import Norm
from vitconv.vit.stages.attention import Grid
from vitconv.vit.stages.block import StageBlock
from vitconv.vit.stages.config import StagesConfig


class Convolution(nn.Conv2d):
    """The patch projection, or the convolution into a stage; those of PVTv2 and CSwin overlap."""

    def __init__(self, config: StagesConfig, name: str) -> None:
        d, c, p, q = config.shapes[f"{name}.weight"]
        first = name == "embed.patch"
        over = overlap(config.shapes, p)
        step = patch_stride(config.shapes) if first else (2, 2) if over else (p, q)
        pad = 0 if not over else 2 if first and config.striped else p // 2
        super().__init__(c, d, (p, q), step, pad, bias=f"{name}.bias" in config.shapes)


class Embed(nn.Module):
    """Project patches, then norm and add positions, each where the tensors have it."""

    def __init__(self, config: StagesConfig) -> None:
        super().__init__()
        d, eps = config.shapes["embed.patch.weight"][0], config.facts.embed_norm_eps or 0.0
        self.patch = Convolution(config, "embed.patch")
        self.norm = Norm(d, eps) if config.has("embed.norm") else nn.Identity()
        self.pos = nn.Parameter(torch.zeros(config.shapes["embed.pos"])) if config.has("embed.pos") else None
        self.mask = nn.Parameter(torch.zeros(d)) if config.has("embed.mask") else None

    def forward(self, images: Tensor) -> tuple[Tensor, Grid]:
        """Return the tokens [b t d] of images [b c height width], and their grid."""
        step = self.patch.stride
        if self.patch.padding == (0, 0):
            # Images are padded at the right and below to whole patches.
            images = nn.functional.pad(images, (0, -images.shape[3] % step[1], 0, -images.shape[2] % step[0]))
        feature_map = self.patch(images)
        x = self.norm(feature_map.flatten(2).transpose(1, 2))
        return (x if self.pos is None else x + self.pos), (feature_map.shape[2], feature_map.shape[3])


class Merge(nn.Module):
    """Join the four neighbours of a 2 x 2 cell and project them: norm before (Swin) or after (Swin V2)."""

    def __init__(self, config: StagesConfig, s: int) -> None:
        super().__init__()
        at, eps = f"stages.{s}.merge.", config.facts.embed_norm_eps or 0.0
        for name in NEIGHBOURS:
            d, before = config.shapes[f"{at}{name}.weight"]
            self.add_module(name, nn.Linear(before, d, bias=False))
        self.norm: nn.Module | None = None
        self.out_norm: nn.Module | None = None
        self.eps = eps
        if config.has(f"{at}norm"):
            self.norm = nn.Module()
            for name in NEIGHBOURS:
                self.norm.add_module(name, Norm(before, eps))
        else:
            self.out_norm = Norm(d, eps)

    def forward(self, x: Tensor, grid: Grid) -> tuple[Tensor, Grid]:
        """Map [b t before] on a grid to [b t/4 d] on half of it, an odd side padded."""
        image = x.unflatten(1, grid)
        image = nn.functional.pad(image, (0, 0, 0, grid[1] % 2, 0, grid[0] % 2))
        cells = [image[:, int(name[1]) :: 2, int(name[3]) :: 2] for name in NEIGHBOURS]
        if self.norm is not None:
            # One norm over all four, its gain and shift cut in four.
            both = torch.cat(cells, -1)
            parts = [getattr(self.norm, name) for name in NEIGHBOURS]
            weight, bias = (torch.cat([getattr(p, k) for p in parts]) for k in ("weight", "bias"))
            both = nn.functional.layer_norm(both, weight.shape, weight, bias, self.eps)
            cells = list(both.chunk(4, -1))
        y = sum(getattr(self, name)(cell) for name, cell in zip(NEIGHBOURS, cells, strict=True))
        assert isinstance(y, Tensor)
        half = (y.shape[1], y.shape[2])
        y = y.flatten(1, 2)
        return (y if self.out_norm is None else self.out_norm(y)), half


class Entry(nn.Module):
    """What leads into a stage: merging or convolution, positions, class token, each where the tensors have it."""

    def __init__(self, config: StagesConfig, s: int) -> None:
        super().__init__()
        at, d, facts = f"stages.{s}.", config.width(s), config.facts
        self.merge = Merge(config, s) if config.has(f"{at}merge") else None
        self.patch = Convolution(config, f"{at}patch") if config.has(f"{at}patch") else None
        self.patch_norm = Norm(d, facts.embed_norm_eps or 0.0) if config.has(f"{at}patch_norm") else nn.Identity()
        self.pos = nn.Parameter(torch.zeros(config.shapes[f"{at}pos"])) if config.has(f"{at}pos") else None
        self.cls = nn.Parameter(torch.zeros(d)) if config.has(f"{at}cls") else None
        self.pos_cls = nn.Parameter(torch.zeros(d)) if config.has(f"{at}pos_cls") else None

    def enter(self, x: Tensor, grid: Grid) -> tuple[Tensor, Grid]:
        """Map the tokens of the stage before, [b t before] on a grid, to those of the first block of this one."""
        if self.merge is not None:
            x, grid = self.merge(x, grid)
        if self.patch is not None:
            feature_map = self.patch(x.transpose(1, 2).unflatten(2, grid))
            grid = (feature_map.shape[2], feature_map.shape[3])
            x = self.patch_norm(feature_map.flatten(2).transpose(1, 2))
        if self.pos is not None:
            if len(self.pos) != x.shape[1]:
                raise Refused(
                    f"a table of {len(self.pos)} positions on a map of {grid[0]}x{grid[1]}: PVT's code resizes it in"
                    " every pass, which the reference does not; use images of the size that the tables are for"
                )
            x = x + self.pos
        if self.cls is not None:
            row = self.cls if self.pos_cls is None else self.cls + self.pos_cls
            x = torch.cat([row.expand(len(x), 1, -1), x], 1)
        return x, grid


class Stage(Entry):
    """What leads into a stage, its blocks, and the norm at its end, where the tensors have one."""

    def __init__(self, config: StagesConfig, s: int) -> None:
        super().__init__(config, s)
        self.blocks = nn.ModuleList(StageBlock(config, s, i) for i in range(config.depths[s]))
        self.norm = end_of(config, s)

    def forward(self, x: Tensor, grid: Grid) -> tuple[Tensor, Grid]:
        """Map the tokens of the stage before, [b t before] on a grid, to those of this one."""
        x, grid = self.enter(x, grid)
        for block in self.blocks:
            x = block(x, grid)
        return self.norm(x), grid


def end_of(config: StagesConfig, s: int) -> nn.Module:
    """Return the norm at the end of a stage, or nothing."""
    present = config.has(f"stages.{s}.norm")
    return Norm(config.width(s), config.facts.norm_eps or 0.0) if present else nn.Identity()


class StageViT(nn.Module):
    """logits = head(mean over places of norm(stages(embed(images)))); without a head the pooled features."""

    def __init__(self, config: StagesConfig) -> None:
        super().__init__()
        self.config = config
        last = len(config.depths) - 1
        self.embed = Embed(config)
        self.stages = nn.ModuleList(Stage(config, s) for s in range(last + 1))
        present = config.has("norm")
        self.norm = Norm(config.width(last), config.facts.final_norm_eps or 0.0) if present else nn.Identity()
        self.pool = Pool(config)
        classes = config.shapes.get("head.weight", (0,))[0]
        self.head = nn.Linear(config.width(last), classes, "head.bias" in config.shapes) if classes else None

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits [b o] of images: [b c height width], float; without a head the features [b d]."""
        x, grid = self.embed(images)
        for stage in self.stages:
            x, grid = stage(x, grid)
        # FLatten-PVT has a final norm in its file and does not apply it.
        pooled = self.pool(x if self.config.facts.pooling == "avg-unnormed" else self.norm(x))
        return pooled if self.head is None else self.head(pooled)


class Pool(nn.Module):
    """Reduce [b t d] to [b d]: the mean over the places, or the class token."""

    def __init__(self, config: StagesConfig) -> None:
        super().__init__()
        self.kind = config.facts.pooling
        if self.kind not in ("avg", "avg-unnormed", "token"):
            raise UsageError(f"pooling {self.kind!r}: a stage-wise network pools avg, avg-unnormed or token")

    def forward(self, x: Tensor) -> Tensor:
        """Pool x: [b t d]."""
        return x[:, 0] if self.kind == "token" else x.mean(1)
