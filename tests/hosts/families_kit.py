"""Tiny networks of transformers' families, random weights in every parameter, and their distance from the reference."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vitconv.hosts.base.host import Built, Spec
from vitconv.parity.bridge import bridge_of, state_of
from vitconv.parity.compare import gaps
from vitconv.parity.trace import trace
from vitconv.registry import HOSTS, load

_PLAIN: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "image_size": 16,
    "patch_size": 4,
}
_DINOV2 = {k: v for k, v in _PLAIN.items() if k != "intermediate_size"} | {"mlp_ratio": 2}
_ROWS = {k: v for k, v in _PLAIN.items() if k != "image_size"} | {"num_patches": 16}
_DECODER = {
    "decoder_hidden_size": 16,
    "decoder_num_hidden_layers": 1,
    "decoder_num_attention_heads": 2,
    "decoder_intermediate_size": 16,
}
CASES: Mapping[str, tuple[str, dict[str, Any]]] = {
    "vit": ("vit", _PLAIN),
    "vit eager": ("vit", {**_PLAIN, "attn": "eager"}),
    "vit pooler": ("vit", {**_PLAIN, "class": "ViTModel"}),
    "deit": ("deit", _PLAIN),
    "deit two heads": ("deit", {**_PLAIN, "class": "DeiTForImageClassificationWithTeacher"}),
    "dinov2": ("dinov2", _DINOV2),
    "dinov2 swiglu": ("dinov2", {**_DINOV2, "use_swiglu_ffn": True}),
    "dinov2 registers": ("dinov2_with_registers", {**_DINOV2, "num_register_tokens": 3}),
    "dinov3": ("dinov3_vit", {**_PLAIN, "num_register_tokens": 2}),
    "dinov3 gated, no registers": (
        "dinov3_vit",
        {**_PLAIN, "num_register_tokens": 0, "use_gated_mlp": True, "hidden_act": "silu", "key_bias": True},
    ),
    "mae": ("vit_mae", {**_PLAIN, **_DECODER}),
    "mae without decoder": ("vit_mae", {**_PLAIN, "class": "ViTMAEModel"}),
    "beit": ("beit", {**_PLAIN, "use_relative_position_bias": True}),
    "beit token": ("beit", {**_PLAIN, "use_shared_relative_position_bias": True, "use_mean_pooling": False}),
    "beit table": ("beit", {**_PLAIN, "use_absolute_position_embeddings": True, "class": "BeitModel"}),
    "beit masked": (
        "beit",
        {
            **_PLAIN,
            "use_shared_relative_position_bias": True,
            "use_mean_pooling": False,
            "use_mask_token": True,
            "class": "BeitForMaskedImageModeling",
        },
    ),
    "ijepa": ("ijepa", _PLAIN),
    "ijepa classes": ("ijepa", {**_PLAIN, "class": "IJepaForImageClassification"}),
    "clip": ("clip_vision_model", _PLAIN),
    "clip projection": (
        "clip_vision_model",
        {**_PLAIN, "projection_dim": 12, "class": "CLIPVisionModelWithProjection"},
    ),
    "siglip": ("siglip_vision_model", _PLAIN),
    "siglip stream": ("siglip_vision_model", {**_PLAIN, "vision_use_head": False}),
    "siglip2": ("siglip2_vision_model", _ROWS),
}


def randomised(module: nn.Module, seed: int = 0) -> nn.Module:
    """Fill every parameter with O(1) random values."""
    gen = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in module.named_parameters():
            around = 1.0 if p.ndim == 1 and name.endswith("weight") else 0.0
            p.copy_(around + 0.3 * torch.randn(p.shape, generator=gen))
    return module.eval()


def built(case: str) -> Built:
    """Return the network of a case, as the host describes it."""
    model, options = CASES[case]
    found: Built = load(HOSTS, "transformers").build(Spec(model, dict(options)))
    randomised(found.module)
    return found


def saved(case: str, folder: Path) -> Built:
    """Save the network of a case as its library does."""
    found = built(case)
    net: Any = found.module
    net.save_pretrained(folder)
    return found


def gaps_to_reference(found: Built, *, change: Callable[[Built], None] | None = None) -> dict[str, float]:
    """Return {what: gap} between a live network and the reference of its facts and weights, in float64.

    Forward and backward. `change` plants a fault in the library's network, after the reference was built.
    """
    host, module = load(HOSTS, found.host), copy.deepcopy(found.module).double()
    wide: Built = host.describe(module, Spec(found.model))
    bridge = bridge_of(state_of(module), wide.dialects, wide.facts, wide.choices, wide.axes)
    weights = bridge.read(state_of(module))
    shapes = {name: tuple(t.shape) for name, t in weights.items()}
    facts = bridge.network.facts.replaced(wide.facts.known())
    other: Built = load(HOSTS, "reference").build(Spec("", {}, facts, shapes))
    other.module.double().load_state_dict(weights)
    if change is not None:
        change(wide)
        wide = host.describe(module, Spec(found.model))
    images = torch.randn(2, *wide.inputs.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    traces = [trace(b, images, 0, "fp64", side=s, inputs="noise") for b, s in ((wide, "A"), (other, "B"))]
    return {f"{g.kind} {g.name}": g.rel_rms for g in gaps(*traces)}
