"""Random weights, and hand-written maps of other libraries' tensors to canonical ones."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parent))

# The patches of an 8 x 12 image cut into 4 x 4.
GRID = 6


def _randomise(module: nn.Module, seed: int = 0) -> nn.Module:
    """Fill every parameter with O(1) values: matrices keep the size of the signal, vectors are 1 + N(0,
    0.5)."""
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in module.parameters():
            fan = p[0].numel() if p.ndim > 1 else 1
            noise = torch.randn(p.shape, generator=g, dtype=torch.float64)
            p.copy_(noise * (1.5 / fan**0.5) if p.ndim > 1 else 1 + 0.5 * noise)
    return module


@pytest.fixture
def randomise() -> Callable[..., nn.Module]:
    return _randomise


def _timm_to_canonical(tensors: dict[str, Tensor], registers: int = 0, gated: bool = False) -> dict[str, Tensor]:
    """Map tensors under timm's names; every step is a slice or a reshape, so gradients travel alike."""
    out: dict[str, Tensor] = {}
    prefix = [n for n in ("cls", "dist", "reg") if f"{n}_token" in tensors]
    for key, x in tensors.items():
        name = key
        for old, new in (
            ("attn.proj", "attn.out"),
            ("mlp.fc2", "mlp.down"),
            (".gamma", ""),
            ("norm_pre", "embed.norm"),
        ):
            name = name.replace(old, new)
        if key in ("cls_token", "dist_token"):
            out[f"embed.{key[: key.index('_')]}"] = x.flatten()
        elif key == "reg_token":
            out["embed.reg"] = x[0]
        elif key == "pos_embed":
            sizes = [registers if n == "reg" else 1 for n in prefix]
            rows = x[0]
            if len(rows) == GRID:
                sizes, prefix = [], []
            for n, size in zip(prefix, sizes, strict=True):
                out[f"embed.pos_{n}"] = rows[:size] if n == "reg" else rows[0]
                rows = rows[size:]
            out["embed.pos"] = rows
        elif ".attn.qkv." in key:
            for part, slice_ in zip("qkv", x.chunk(3), strict=True):
                out[name.replace("qkv", part)] = slice_
        elif ".mlp.fc1." in key and gated:
            out[name.replace("fc1", "gate")], out[name.replace("fc1", "up")] = x.chunk(2)
        elif ".mlp.fc1." in key:
            out[name.replace("fc1", "up")] = x
        else:
            out[name.replace("patch_embed.proj", "embed.patch").replace("fc_norm", "pool.norm")] = x
    return out


@pytest.fixture
def timm_to_canonical() -> Callable[..., dict[str, Tensor]]:
    return _timm_to_canonical


def _relative(a: Tensor, b: Tensor, scale: float | None = None) -> float:
    """Return max |a - b| / max |b|; `scale` takes the place of a maximum that is a true zero."""
    size = max(b.abs().max().item(), scale or 0.0)
    return ((a - b).abs().max() / size).item()


@pytest.fixture
def relative() -> Callable[..., float]:
    return _relative
