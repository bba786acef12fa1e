"""The same weights in every host's network, by hand-written maps from canonical names."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent))

WIDTH, DEPTH, HEADS, CLASSES, GRID, PATCH = 32, 3, 4, 5, 3, 4
BLOCK = {"norm1", "norm2", "attn.out", "mlp.up", "mlp.down"}

# {host dialect: {canonical stem: the library's}}; qkv and tokens are joined below.
NAMES = {
    "timm": {
        "embed.patch": "patch_embed.proj",
        "blocks.{i}.norm1": "blocks.{i}.norm1",
        "blocks.{i}.attn.out": "blocks.{i}.attn.proj",
        "blocks.{i}.norm2": "blocks.{i}.norm2",
        "blocks.{i}.mlp.up": "blocks.{i}.mlp.fc1",
        "blocks.{i}.mlp.down": "blocks.{i}.mlp.fc2",
        "norm": "norm",
        "head": "head",
    },
    "torchvision": {
        "embed.patch": "conv_proj",
        "blocks.{i}.norm1": "encoder.layers.encoder_layer_{i}.ln_1",
        "blocks.{i}.attn.out": "encoder.layers.encoder_layer_{i}.self_attention.out_proj",
        "blocks.{i}.norm2": "encoder.layers.encoder_layer_{i}.ln_2",
        "blocks.{i}.mlp.up": "encoder.layers.encoder_layer_{i}.mlp.0",
        "blocks.{i}.mlp.down": "encoder.layers.encoder_layer_{i}.mlp.3",
        "norm": "encoder.ln",
        "head": "heads.head",
    },
    "transformers": {
        "embed.patch": "vit.embeddings.patch_embeddings.projection",
        "blocks.{i}.norm1": "vit.layers.{i}.layernorm_before",
        "blocks.{i}.attn.q": "vit.layers.{i}.attention.q_proj",
        "blocks.{i}.attn.k": "vit.layers.{i}.attention.k_proj",
        "blocks.{i}.attn.v": "vit.layers.{i}.attention.v_proj",
        "blocks.{i}.attn.out": "vit.layers.{i}.attention.o_proj",
        "blocks.{i}.norm2": "vit.layers.{i}.layernorm_after",
        "blocks.{i}.mlp.up": "vit.layers.{i}.mlp.fc1",
        "blocks.{i}.mlp.down": "vit.layers.{i}.mlp.fc2",
        "norm": "vit.layernorm",
        "head": "classifier",
    },
    "xformers": {
        "embed.patch": "patch_embed.proj",
        "blocks.{i}.norm1": "backbone.encoders.{i}.wrap_att.layer.norm",
        "blocks.{i}.attn.q": "backbone.encoders.{i}.wrap_att.layer.sublayer.in_proj_container.q_proj",
        "blocks.{i}.attn.k": "backbone.encoders.{i}.wrap_att.layer.sublayer.in_proj_container.k_proj",
        "blocks.{i}.attn.v": "backbone.encoders.{i}.wrap_att.layer.sublayer.in_proj_container.v_proj",
        "blocks.{i}.attn.out": "backbone.encoders.{i}.wrap_att.layer.sublayer.proj",
        "blocks.{i}.norm2": "backbone.encoders.{i}.wrap_ff.layer.norm",
        "blocks.{i}.mlp.up": "backbone.encoders.{i}.wrap_ff.layer.sublayer.mlp.0",
        "blocks.{i}.mlp.down": "backbone.encoders.{i}.wrap_ff.layer.sublayer.mlp.3",
        "norm": "head.0",
        "head": "head.1",
    },
}
FUSED = {
    "timm": "blocks.{i}.attn.qkv.",
    "torchvision": "encoder.layers.encoder_layer_{i}.self_attention.in_proj_",
}
TOKENS = {
    "timm": ("cls_token", "pos_embed"),
    "torchvision": ("class_token", "encoder.pos_embedding"),
    "transformers": ("vit.embeddings.cls_token", "vit.embeddings.position_embeddings"),
    "xformers": ("cls_token", "pos_embed"),
}


@pytest.fixture
def canonical() -> dict[str, Tensor]:
    """Canonical weights, float64, every tensor random and O(1)."""
    g = torch.Generator().manual_seed(0)
    d, m = WIDTH, 4 * WIDTH

    def draw(*shape: int) -> Tensor:
        x = torch.randn(shape, generator=g, dtype=torch.float64)
        return x * (1.5 / x[0].numel() ** 0.5) if x.ndim > 1 else 1 + 0.5 * x

    shapes: dict[str, tuple[int, ...]] = {
        "embed.cls": (d,),
        "embed.pos": (GRID**2, d),
        "embed.pos_cls": (d,),
        "embed.patch.weight": (d, 3, PATCH, PATCH),
        "embed.patch.bias": (d,),
    }

    def layer(name: str, *weight: int) -> None:
        shapes.update({f"{name}.weight": weight, f"{name}.bias": weight[:1]})

    for i in range(DEPTH):
        layer(f"blocks.{i}.norm1", d)
        for part in ("q", "k", "v", "out"):
            layer(f"blocks.{i}.attn.{part}", d, d)
        layer(f"blocks.{i}.norm2", d)
        layer(f"blocks.{i}.mlp.up", m, d)
        layer(f"blocks.{i}.mlp.down", d, m)
    layer("norm", d)
    layer("head", CLASSES, d)
    return {name: draw(*shape) for name, shape in shapes.items()}


def _carry(weights: dict[str, Tensor], library: str) -> dict[str, Tensor]:
    """Carry canonical tensors into a library's names; slices and joins only."""
    out: dict[str, Tensor] = {}
    for stem, target in NAMES[library].items():
        for i in range(DEPTH if "{i}" in stem else 1):
            for leaf in ("weight", "bias"):
                out[f"{target}.{leaf}".format(i=i)] = weights[f"{stem}.{leaf}".format(i=i)]
    if library in FUSED:
        for i in range(DEPTH):
            for leaf in ("weight", "bias"):
                parts = [weights[f"blocks.{i}.attn.{part}.{leaf}"] for part in "qkv"]
                out[FUSED[library].format(i=i) + leaf] = torch.cat(parts)
    cls, pos = TOKENS[library]
    out[cls] = weights["embed.cls"].reshape(1, 1, -1)
    out[pos] = torch.cat([weights["embed.pos_cls"].unsqueeze(0), weights["embed.pos"]]).unsqueeze(0)
    return out


@pytest.fixture
def carry() -> Callable[[dict[str, Tensor], str], dict[str, Tensor]]:
    return _carry
