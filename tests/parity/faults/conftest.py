"""Small reference ViTs that between them can have every fault, with O(1) weights."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from vitconv.layout.semantics import Semantics
from vitconv.parity.probe import probe_weights
from vitconv.vit.config import ViTConfig

# The kit of networks of stages is imported by name.
sys.path.insert(0, str(Path(__file__).parent))

_FACTS = {
    "heads": 4,
    "norm_placement": "pre",
    "norm_kind": "layernorm",
    "norm_eps": 1e-6,
    "final_norm_eps": 1e-6,
    "activation": "gelu",
    "attention": "softmax",
    "kv_normalised": True,
    "pooling": "token",
}
_SIZES = {
    "width": 16, "depth": 3, "attention_width": 16, "mlp_width": 24, "patch": (4, 4), "channels": 3, "positions": 9,
    "classes": 5,
}  # fmt: skip


def _config(facts: dict[str, object], **sizes: object) -> ViTConfig:
    return ViTConfig(facts=Semantics(**{**_FACTS, **facts}), **{**_SIZES, **sizes})  # type: ignore[arg-type]


CONFIGS = {
    "token": _config({}, layer_scale=True),
    "rich": _config(
        {"activation": "silu", "pooling": "avg", "embed_norm_eps": 1e-4, "qk_norm_eps": 1e-4, "norm_eps": 1e-4,
         "final_norm_eps": 1e-4},
        registers=2, pos_cls=False, qk_norm=True, attn_norm=True, gated=True, mlp_norm=True, embed_norm=True,
        pool_norm=True, norm=False,
    ),
    "distilled": _config({"final_norm_eps": 1e-5}, dist=True, pos_dist=True, classes_dist=5, trunk_norm=True),
    "deepnorm": _config(
        {"norm_placement": "deepnorm", "residual_alpha": 1.7, "pooling": "avg"}, norm=True, pool_dense=16
    ),
    "rms": _config({"norm_kind": "rmsnorm", "activation": "relu", "attention_scale": 0.3}, norm_bias=False),
    # Grids of 3 x 4 patches, so that rows are told from columns.
    "halves turn": _config(
        {"position": "rope", "heads": 2, "grid": (3, 4),
         "rope_layout": "half", "qk_norm_eps": 1e-4}, positions=0, pos_cls=False, patch=(4, 3),
        qk_norm=True, registers=2,
    ),
    "over the shorter side": _config(
        {"position": "rope", "heads": 2, "grid": (3, 4),
         "rope_layout": "half", "rope_places": "min"}, positions=0, pos_cls=False, patch=(4, 3),
    ),
    "neighbours turn": _config(
        {"position": "rope", "heads": 2, "grid": (3, 4),
         "rope_layout": "interleaved", "rope_order": "rows"}, positions=0, pos_cls=False,
        patch=(4, 3),
    ),
    "relative": _config({"position": "relative", "grid": (3, 3)}, positions=0, pos_cls=False, relative=25),
}  # fmt: skip


@pytest.fixture(params=CONFIGS, scope="session")
def network(request: pytest.FixtureRequest) -> tuple[ViTConfig, dict[str, Tensor]]:
    config = CONFIGS[request.param]
    return config, probe_weights(config.shapes(), 0)


@pytest.fixture(scope="session")
def network_named() -> Callable[[str], tuple[ViTConfig, dict[str, Tensor]]]:
    return lambda name: (CONFIGS[name], probe_weights(CONFIGS[name].shapes(), 0))


@pytest.fixture(scope="session")
def images() -> Tensor:
    return torch.randn(3, 3, 12, 12, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
