"""Tiny networks of stages that between them can have every fault of stages, with weights that show it."""

from __future__ import annotations

from functools import cache
from math import log
from typing import Any

import torch
from torch import Tensor

from vitconv.layout.semantics import Semantics
from vitconv.parity.faults.flat import FlatConfig
from vitconv.parity.probe import probe_weights
from vitconv.vit.stages.config import config_of_stages

Shape = tuple[int, ...]
_FACTS: dict[str, Any] = {
    "norm_eps": 1e-5, "final_norm_eps": 1e-5, "embed_norm_eps": 1e-4, "activation": "gelu", "norm_placement": "pre",
    "norm_kind": "layernorm", "kv_normalised": True, "pooling": "avg", "image_size": (16, 16),
}  # fmt: skip


def _block(at: str, d: int, *, k_bias: bool = True) -> dict[str, Shape]:
    shapes: dict[str, Shape] = {f"{at}norm{j}.{leaf}": (d,) for j in (1, 2) for leaf in ("weight", "bias")}
    for part in ("q", "k", "v", "out"):
        shapes[f"{at}attn.{part}.weight"] = (d, d)
        if part != "k" or k_bias:
            shapes[f"{at}attn.{part}.bias"] = (d,)
    shapes |= {f"{at}mlp.up.weight": (12, d), f"{at}mlp.up.bias": (12,)}
    return shapes | {f"{at}mlp.down.weight": (d, 12), f"{at}mlp.down.bias": (d,)}


def _ends(d: int) -> dict[str, Shape]:
    shapes: dict[str, Shape] = {"embed.patch.weight": (8, 3, 2, 2), "embed.patch.bias": (8,)}
    shapes |= {f"embed.norm.{leaf}": (8,) for leaf in ("weight", "bias")}
    return shapes | {"norm.weight": (d,), "norm.bias": (d,), "head.weight": (5, d), "head.bias": (5,)}


def _swin(kind: str) -> dict[str, Shape]:
    shapes = _ends(16)
    for s, d in enumerate((8, 16)):
        for i in range(2):
            at = f"stages.{s}.blocks.{i}."
            shapes |= _block(at, d, k_bias=kind != "cosine")
            if kind == "cosine":
                shapes |= {f"{at}attn.logit_scale": (2,), f"{at}attn.cpb.up.weight": (6, 2)}
                shapes |= {f"{at}attn.cpb.up.bias": (6,), f"{at}attn.cpb.down.weight": (2, 6)}
            elif kind == "focused" and s == 0:
                shapes |= {f"{at}attn.scale": (d,), f"{at}attn.pos": (16, d), f"{at}attn.dwc.weight": (d // 2, 3, 3)}
                shapes |= {f"{at}attn.dwc.bias": (d // 2,)}
            else:
                shapes[f"{at}attn.table"] = (25 if kind == "table" else 49, 2)
    for at in ("h0w0", "h1w0", "h0w1", "h1w1"):
        shapes[f"stages.1.merge.{at}.weight"] = (16, 8)
        if kind != "cosine":
            shapes |= {f"stages.1.merge.norm.{at}.{leaf}": (8,) for leaf in ("weight", "bias")}
    if kind == "cosine":
        shapes |= {f"stages.1.merge.out_norm.{leaf}": (16,) for leaf in ("weight", "bias")}
    return shapes


def _pvt() -> dict[str, Shape]:
    shapes = {n: s for n, s in _ends(16).items() if not n.startswith("embed.norm")}
    shapes |= {f"embed.norm.{leaf}": (8,) for leaf in ("weight", "bias")} | {"stages.0.pos": (64, 8)}
    for i in range(2):
        at = f"stages.0.blocks.{i}."
        shapes |= _block(at, 8) | {f"{at}attn.sr.weight": (8, 8, 2, 2), f"{at}attn.sr.bias": (8,)}
        shapes |= {f"{at}attn.sr_norm.{leaf}": (8,) for leaf in ("weight", "bias")}
    shapes |= {"stages.1.patch.weight": (16, 8, 2, 2), "stages.1.patch.bias": (16,), "stages.1.pos": (16, 16)}
    shapes |= {f"stages.1.patch_norm.{leaf}": (16,) for leaf in ("weight", "bias")}
    return shapes | _block("stages.1.blocks.0.", 16)


def _pvt_v2() -> dict[str, Shape]:
    """As `_pvt`, with a norm at the end of every stage and none behind the last one."""
    ends = {f"stages.{s}.norm.{leaf}": (d,) for s, d in ((0, 8), (1, 16)) for leaf in ("weight", "bias")}
    return {n: s for n, s in _pvt().items() if not n.startswith("norm.")} | ends


_NETWORKS: dict[str, tuple[dict[str, Shape], dict[str, Any]]] = {
    "table": (_swin("table"), {"window": (3,), "window_rule": "microsoft", "image_size": (16, 16)}),
    "whole": (_swin("table"), {"window": (3,), "window_rule": "mmseg", "image_size": (6, 6)}),
    "one side": (_swin("table"), {"window": (3,), "window_rule": "timm", "image_size": (16, 12)}),
    "cosine": (_swin("cosine"), {"window": (4,), "pretrained_window": (8,), "norm_placement": "res-post"}),
    "cut": (
        _swin("cosine"),
        {"window": (8, 4), "pretrained_window": (0,), "norm_placement": "res-post", "image_size": (16, 16)},
    ),
    "too large": (
        _swin("cosine"),
        {"window": (6,), "pretrained_window": (0,), "norm_placement": "res-post", "image_size": (16, 16),
         "window_rule": "torchvision"},
    ),
    "focused": (
        _swin("focused"),
        {"window": (4,), "attention": "focused-upstream-fix", "focusing_factor": 5},
    ),
    "focused, sum": (_swin("focused"), {"window": (4,), "attention": "focused-original", "focusing_factor": 3}),
    "reduced": (
        _pvt(), {"stage_heads": (2, 4), "activation": "silu", "norm_eps": 1e-6, "final_norm_eps": 1e-6},
    ),
    "ending with norms": (_pvt_v2(), {"stage_heads": (2, 4), "norm_eps": 1e-4}),
}  # fmt: skip
NETWORKS = tuple(_NETWORKS)


@cache
def network(name: str) -> tuple[FlatConfig, dict[str, Tensor]]:
    """Return a configuration and canonical weights in a row; a cosine's scales lie on both sides of their limit."""
    shapes, facts = _NETWORKS[name]
    config = FlatConfig(config_of_stages(shapes, Semantics(**{**_FACTS, **facts})))
    weights = probe_weights(shapes, 0)
    for n, w in weights.items():
        if n.endswith("logit_scale"):
            w.copy_(torch.tensor([log(100.0) + 0.5, 1.0]))
    return config, {n: w.double() for n, w in config.flat(weights).items()}


@cache
def images(name: str) -> Tensor:
    """Return two images that the network takes."""
    config, _ = network(name)
    generator = torch.Generator().manual_seed(1)
    return torch.randn(2, 3, *config.image_size, generator=generator, dtype=torch.float64)
