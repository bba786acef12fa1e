"""One small ViT in every host, with the same random weights."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from vitconv.parity.probe import probe_weights

FACTS = {
    "heads": 4,
    "norm_placement": "pre",
    "norm_kind": "layernorm",
    "norm_eps": 1e-6,
    "final_norm_eps": 1e-6,
    "activation": "gelu",
    "attention": "softmax",
    "kv_normalised": True,
    "pooling": "token",
    "position": "learned",
    "grid": (4, 4),
    "image_size": (16, 16),
}
STACK: dict[str, Any] = {
    "block_type": "encoder",
    "dim_model": 32,
    "num_layers": 2,
    "residual_norm_style": "pre",
    "multi_head_config": {
        "num_heads": 4,
        "residual_dropout": 0.0,
        "attention": {"name": "scaled_dot_product", "dropout": 0.0, "causal": False},
    },
    "feedforward_config": {"name": "MLP", "dropout": 0.0, "activation": "gelu", "hidden_layer_multiplier": 2},
}
_WRAPPED = {"image": (16, 16), "patch": (4, 4), "channels": 3, "classes": 5}
# {name: (spec, host options)}
NETWORKS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "timm": (
        "timm:vit_small_patch16_224",
        {
            "img_size": 16, "patch_size": 4, "embed_dim": 32, "depth": 2, "num_heads": 4, "mlp_ratio": 2,
            "num_classes": 5,
        },
    ),
    "torchvision": (
        "torchvision:VisionTransformer",
        {
            "image_size": 16, "patch_size": 4, "num_layers": 2, "num_heads": 4, "hidden_dim": 32, "mlp_dim": 64,
            "num_classes": 5,
        },
    ),
    "transformers": (
        "transformers:vit",
        {
            "image_size": 16, "patch_size": 4, "num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 32,
            "intermediate_size": 64, "num_labels": 5, "layer_norm_eps": 1e-6,
        },
    ),
    "transformers, eager": (
        "transformers:vit",
        {
            "image_size": 16, "patch_size": 4, "num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 32,
            "intermediate_size": 64, "num_labels": 5, "layer_norm_eps": 1e-6, "attn": "eager",
        },
    ),
    "xformers": ("xformers:", {"config": [STACK], **_WRAPPED}),
    "xformers-style": ("xformers-style:", {"config": STACK, "release": "0.0.22", **_WRAPPED}),
    "xformers-style 0.0.9": (
        "xformers-style:",
        {"config": {k if k != "residual_norm_style" else "layer_norm_style": v for k, v in STACK.items()},
         "release": "0.0.9", **_WRAPPED},
    ),
}  # fmt: skip


def small_shapes(
    width: int = 32,
    depth: int = 2,
    mlp: int = 64,
    patches: int = 16,
    patch: int = 4,
    channels: int = 3,
    classes: int = 5,
) -> dict[str, tuple[int, ...]]:
    """Canonical shapes of a plain ViT with a class token."""
    d, out = width, dict[str, tuple[int, ...]]()

    def linear(name: str, *shape: int) -> None:
        out[f"{name}.weight"], out[f"{name}.bias"] = shape, shape[:1]

    out |= {"embed.cls": (d,), "embed.pos": (patches, d), "embed.pos_cls": (d,)}
    linear("embed.patch", d, channels, patch, patch)
    for i in range(depth):
        linear(f"blocks.{i}.norm1", d)
        for part in ("q", "k", "v", "out"):
            linear(f"blocks.{i}.attn.{part}", d, d)
        linear(f"blocks.{i}.norm2", d)
        linear(f"blocks.{i}.mlp.up", mlp, d)
        linear(f"blocks.{i}.mlp.down", d, mlp)
    linear("norm", d)
    linear("head", classes, d)
    return out


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., str]:
    """Write canonical weights, float32, with facts in the metadata; return the path."""

    def to(
        name: str, weights: Mapping[str, Tensor] | None = None, facts: Mapping[str, Any] = FACTS, **more: Any
    ) -> str:
        from safetensors.torch import save_file

        from vitconv.layout.semantics import Semantics

        chosen = probe_weights(small_shapes(), 3) if weights is None else weights
        path = tmp_path / f"{name}.safetensors"
        said = Semantics(**{**facts, **more}).to_json()
        tensors = {
            k: v.to(torch.float32 if v.dtype == torch.float64 else v.dtype).contiguous() for k, v in chosen.items()
        }
        save_file(tensors, path, {"vitconv.facts": said})
        return str(path)

    return to


@pytest.fixture
def weights() -> dict[str, Tensor]:
    """Canonical weights of the small ViT, float64."""
    return probe_weights(small_shapes(), 3)


@pytest.fixture
def network() -> Callable[[str], tuple[str, dict[str, Any]]]:
    """Return the spec and the options of a host's small network, skipping where its library is not installed."""

    def of(name: str) -> tuple[str, dict[str, Any]]:
        from vitconv.registry import HOSTS, load

        spec, options = NETWORKS[name]
        reason = load(HOSTS, spec.partition(":")[0]).why_not()
        if reason is not None:
            pytest.skip(reason)
        return spec, copy.deepcopy(options)

    return of


@pytest.fixture
def live(weights: dict[str, Tensor]) -> Callable[..., Any]:
    """Build a live reference ViT with the weights, then change it: `live(change, norm_eps=1e-5)`."""
    from vitconv.hosts.base.host import Spec
    from vitconv.layout.semantics import Semantics
    from vitconv.parity.bridge import bridge_of, state_of
    from vitconv.registry import HOSTS, load

    def make(
        change: Callable[[Any], None] | None = None, given: Mapping[str, Tensor] | None = None, **facts: Any
    ) -> Any:
        chosen = weights if given is None else given
        shapes = {n: tuple(t.shape) for n, t in chosen.items()}
        built = load(HOSTS, "reference").build(Spec("", {}, Semantics(**{**FACTS, **facts}), shapes))
        bridge_of(state_of(built.module), ("canonical",)).write(chosen, state_of(built.module))
        if change is not None:
            change(built.module)
        return built.module

    return make
