"""Small random models of the libraries, and what a live model really computes with."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from vitconv.configs.request import Request
from vitconv.layout.detect import detect
from vitconv.layout.semantics import Semantics


@pytest.fixture
def fill() -> Callable[[Any], Any]:
    """Give every parameter and buffer of floats a random value of size one."""
    import torch

    def run(model: Any) -> Any:
        torch.set_num_threads(1)
        generator = torch.Generator().manual_seed(7)
        with torch.no_grad():
            for p in model.parameters():
                p.copy_(torch.randn(p.shape, generator=generator) * 0.3)
        return model.eval()

    return run


@pytest.fixture
def request_for() -> Callable[..., Request]:
    """Describe a live model's tensors as the converter would, by the rules of one dialect."""

    def run(dialect: Any, shapes: dict[str, tuple[int, ...]], facts: Semantics, **extra: Any) -> Request:
        match = detect(shapes, [dialect], facts=facts.known())
        names = frozenset(part for b in match.bound for part in b.parts)
        sizes = {**match.sizes, "i": match.depth}
        return Request(dialect.name, sizes, facts, names, frozenset(shapes), extra)

    return run


@pytest.fixture
def act_name() -> Callable[[Any], str]:
    """Name an activation by the numbers it gives, whatever class it is."""
    import torch
    import torch.nn.functional as F

    known = {
        "gelu": F.gelu,
        "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
        "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
        "relu": F.relu,
        "silu": F.silu,
        "squared_relu": lambda x: F.relu(x) ** 2,
        "leaky_relu": F.leaky_relu,
    }
    x = torch.linspace(-4, 4, 101, dtype=torch.float64)

    def run(act: Any) -> str:
        y = act(x)
        fits = [name for name, f in known.items() if math.isclose((f(x) - y).abs().max().item(), 0, abs_tol=1e-6)]
        assert len(fits) == 1, f"{act} is one of {fits}"
        return fits[0]

    return run


def eps_of(modules: Iterable[Any]) -> float | None:
    """Return the one eps of several norms, None of none."""
    values = {m.eps for m in modules}
    assert len(values) <= 1, values
    return values.pop() if values else None


@pytest.fixture
def timm_facts(act_name: Callable[[Any], str]) -> Callable[[Any], dict[str, Any]]:
    """Return what a live timm VisionTransformer computes with, read off its modules."""
    from torch import nn

    def run(model: Any) -> dict[str, Any]:
        blocks = list(model.blocks)
        norms = [m for b in blocks for m in (b.norm1, b.norm2)]
        finals = [m for m in (model.norm, model.fc_norm) if not isinstance(m, nn.Identity)]
        pre = [] if isinstance(model.norm_pre, nn.Identity) else [model.norm_pre]
        qk = [m for b in blocks for m in (b.attn.q_norm, b.attn.k_norm) if not isinstance(m, nn.Identity)]
        pool = {"": "none", "avg": "avg-prefix" if model.pool_include_prefix else "avg"}
        return {
            "heads": blocks[0].attn.num_heads,
            "norm_placement": {"Block": "pre", "ResPostBlock": "res-post"}[type(blocks[0]).__name__],
            "norm_kind": "rmsnorm" if "rms" in type(norms[0]).__name__.lower() else "layernorm",
            "norm_eps": eps_of(norms),
            "final_norm_eps": eps_of(finals),
            "embed_norm_eps": eps_of(pre),
            "qk_norm_eps": eps_of(qk),
            "activation": act_name(blocks[0].mlp.act),
            "pooling": pool.get(model.global_pool, model.global_pool),
            "image_size": tuple(model.patch_embed.img_size),
            "grid": tuple(model.patch_embed.grid_size),
        }

    return run


@pytest.fixture
def hf_facts(act_name: Callable[[Any], str]) -> Callable[[Any], dict[str, Any]]:
    """Return what a live transformers ViT or DeiT computes with, read off its modules."""

    def run(model: Any) -> dict[str, Any]:
        trunk = getattr(model, model.base_model_prefix, model)
        layer = trunk.layers[0]
        patches = trunk.embeddings.patch_embeddings
        size, patch = patches.image_size, patches.patch_size
        return {
            "heads": layer.attention.num_attention_heads,
            "norm_eps": eps_of(m for b in trunk.layers for m in (b.layernorm_before, b.layernorm_after)),
            "final_norm_eps": trunk.layernorm.eps,
            "activation": act_name(layer.mlp.activation_fn),
            "image_size": tuple(size),
            "grid": (size[0] // patch[0], size[1] // patch[1]),
        }

    return run
