"""Small real networks, every parameter random at O(1), and the means to run them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

SMALL = {"img_size": 16, "patch_size": 4, "embed_dim": 32, "depth": 2, "num_heads": 4, "num_classes": 5}


def randomise(module: torch.nn.Module, seed: int = 0) -> torch.nn.Module:
    """Draw every parameter anew: N(0, 0.3), around 1 for the weights of norms and LayerScale."""
    gen = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in module.named_parameters():
            around = 1.0 if ("norm" in name and name.endswith("weight")) or name.endswith("gamma") else 0.0
            p.copy_(around + 0.3 * torch.randn(p.shape, generator=gen, dtype=torch.float64))
    return module.eval()


def timm_vit(seed: int = 0, **kw: Any) -> torch.nn.Module:
    """Return a small timm ViT."""
    from timm.models.vision_transformer import VisionTransformer

    return randomise(VisionTransformer(**{**SMALL, **kw}), seed)


@pytest.fixture
def save(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that saves a state dict as safetensors or .pth."""

    def saved(state: dict[str, Any], name: str = "source.safetensors") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".safetensors":
            from safetensors.torch import save_file

            save_file({k: v.contiguous() for k, v in state.items()}, path, metadata={"format": "pt"})
        else:
            torch.save(state, path)
        return path

    return saved


FACTS = ["heads=4", "norm_eps=1e-6", "final_norm_eps=1e-6", "activation=gelu", "pooling=token", "grid=4x4"]


def images(batch: int = 2, channels: int = 3, size: tuple[int, int] = (16, 16)) -> torch.Tensor:
    """Return coloured, unsymmetric images: [b c height width], float64."""
    gen = torch.Generator().manual_seed(7)
    return torch.randn(batch, channels, *size, generator=gen, dtype=torch.float64)


def logits_and_gradients(module: torch.nn.Module, run: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor):
    """Return (logits, {parameter: gradient}) in float64 for a fixed cotangent."""
    module.zero_grad()
    out = run(x)
    gen = torch.Generator().manual_seed(3)
    (out * torch.randn(out.shape, generator=gen, dtype=out.dtype)).sum().backward()
    return out.detach(), {n: p.grad for n, p in module.named_parameters() if p.grad is not None}


def close(a: torch.Tensor, b: torch.Tensor) -> float:
    """Return the largest difference relative to the largest value."""
    return ((a - b).abs().max() / b.abs().max().clamp_min(1e-300)).item()
