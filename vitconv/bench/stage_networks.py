"""The clean networks of stages that are spoiled: Swin, Swin V2, PVT and PVTv2 of three libraries, 8 wide at first."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from vitconv.bench.mutate import Mutation
from vitconv.bench.mutate_stages import of_every_swin, of_pyramids, of_swin_v2

_TIMM: Mapping[str, Any] = {
    "img_size": 32, "patch_size": 2, "num_classes": 5, "embed_dim": 8, "depths": (2, 2), "num_heads": (2, 4),
    "window_size": 4,
}  # fmt: skip
_TORCHVISION: Mapping[str, Any] = {
    "patch_size": [2, 2], "embed_dim": 8, "depths": [2, 2], "num_heads": [2, 4], "window_size": [4, 4],
    "num_classes": 5,
}  # fmt: skip
_TRANSFORMERS: Mapping[str, Any] = {
    "image_size": 32, "patch_size": 2, "num_labels": 5, "embed_dim": 8, "depths": [2, 2], "num_heads": [2, 4],
    "window_size": 4,
}  # fmt: skip
_PYRAMID: Mapping[str, Any] = {
    "hidden_sizes": [8, 12, 16, 24], "depths": [2, 1, 1, 2], "num_attention_heads": [1, 2, 2, 3],
    "mlp_ratios": [2, 2, 2, 2], "num_labels": 5, "image_size": 64,
}  # fmt: skip


def stage_networks() -> dict[str, Callable[[], Any]]:
    """Return makers of the networks, by name; their weights are their library's own initialisation."""
    return {
        "timm swin": lambda: _timm("swin_tiny_patch4_window7_224"),
        "timm swin v2": lambda: _timm("swinv2_tiny_window8_256"),
        "torchvision swin": lambda: _torchvision(v2=False),
        "torchvision swin v2": lambda: _torchvision(v2=True),
        "transformers swin": lambda: _transformers("swin", _TRANSFORMERS),
        "transformers swin v2": lambda: _transformers("swinv2", _TRANSFORMERS),
        "timm pvt v2": _timm_pyramid,
        "transformers pvt": lambda: _transformers("pvt", _PYRAMID),
        "transformers pvt v2": lambda: _transformers("pvt_v2", _PYRAMID),
    }


def _timm(name: str) -> Any:
    import timm

    torch.manual_seed(0)
    return timm.create_model(name, pretrained=False, **_TIMM)


def _torchvision(*, v2: bool) -> Any:
    from torchvision.models import swin_transformer as swin

    torch.manual_seed(0)
    parts = {"block": swin.SwinTransformerBlockV2, "downsample_layer": swin.PatchMergingV2} if v2 else {}
    return swin.SwinTransformer(**_TORCHVISION, **parts)


def _timm_pyramid() -> Any:
    from timm.models import PyramidVisionTransformerV2

    torch.manual_seed(0)
    return PyramidVisionTransformerV2(
        num_classes=_PYRAMID["num_labels"], depths=_PYRAMID["depths"], embed_dims=_PYRAMID["hidden_sizes"],
        num_heads=_PYRAMID["num_attention_heads"], mlp_ratios=_PYRAMID["mlp_ratios"],
    )  # fmt: skip


def _transformers(kind: str, sizes: Mapping[str, Any]) -> Any:
    import transformers

    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(kind, **sizes)
    return transformers.AutoModelForImageClassification.from_config(config)


def stage_mutations() -> list[Mutation]:
    """Return every single mutation of networks of stages."""
    return [*of_every_swin(), *of_swin_v2(), *of_pyramids()]
