"""The twin against the real factory of xformers 0.0.28.post3: keys, outputs and gradients, in float64."""

from __future__ import annotations

import copy
import importlib
import warnings
from typing import Any

import pytest
import torch

from vitconv.vit.xformers_style.encoder import xformer

RELEASE = "0.0.28.post3"
TOLERANCE = 1e-12


# The library warns of its own deprecation at import and at every module it builds.
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


@pytest.fixture
def factory(monkeypatch):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = pytest.importorskip("xformers.factory.model_factory", reason="no xformers with a factory")
        if importlib.import_module("xformers").__version__ != RELEASE:
            pytest.skip(f"xformers is not {RELEASE}")
    core = importlib.import_module("xformers.components.attention.core")
    # Without its compiled part the library lacks a name that its causal path looks up.
    monkeypatch.setattr(core, "SparseCS", type("SparseCS", (), {}), raising=False)
    return lambda config: module.xFormer.from_config(module.xFormerConfig(copy.deepcopy(config)))


def block(style: str = "pre", layers: int = 2, head: dict[str, Any] | None = None, mlp=None, **more) -> dict[str, Any]:
    return {
        "block_type": "encoder",
        "dim_model": 16,
        "num_layers": layers,
        "residual_norm_style": style,
        "multi_head_config": {
            "num_heads": 2,
            "residual_dropout": 0.0,
            "attention": {"name": "scaled_dot_product", "dropout": 0.0, "causal": False},
            **(head or {}),
        },
        "feedforward_config": {
            "name": "MLP",
            "dropout": 0.0,
            "activation": "gelu",
            "hidden_layer_multiplier": 4,
            **(mlp or {}),
        },
        **more,
    }


POSITION = {"name": "learnable", "seq_len": 4, "add_class_token": True}
PATCH = {"in_channels": 3, "kernel_size": 2, "stride": 2}
CASES: dict[str, list[dict[str, Any]]] = {
    **{
        f"{style}, separate {separate}": [block(style, head={"use_separate_proj_weight": separate})]
        for style in ("pre", "post", "deepnorm")
        for separate in (True, False)
    },
    **{
        f"{style}, configs {layers}": [block(style, n) for n in layers]
        for style in ("pre", "post", "deepnorm")
        for layers in ((1,), (1, 2), (2, 1), (1, 1, 1))
    },
    "rotary": [block(head={"use_rotary_embeddings": True})],
    "some biases": [block(head={"bias": (True, False, True, False)})],
    "no biases": [block("post", head={"bias": [False] * 4}, mlp={"bias": False})],
    **{
        f"causal, seq_len {length}": [
            block(head={"attention": {"name": "scaled_dot_product", "dropout": 0.0, "causal": True, "seq_len": length}})
        ]
        for length in (None, 5, 9)
    },
    "norms skipped": [block(layers=1, normalization="skip")],
    "sine": [block(position_encoding_config={"name": "sine", "seq_len": 5})],
    "patches, class token, positions": [
        block(layers=1, position_encoding_config=POSITION, patch_embedding_config=PATCH),
        block(layers=2),
    ],
    **{a: [block(mlp={"activation": a})] for a in ("relu", "leaky_relu", "squared_relu", "smelu", "star_relu")},
}


def fill(module: torch.nn.Module) -> None:
    g = torch.Generator().manual_seed(0)
    for p in module.parameters():
        noise = torch.randn(p.shape, generator=g, dtype=torch.float64)
        scale = 1.5 / p[0].numel() ** 0.5 if p.ndim > 1 else 0.5
        p.data = noise * scale + (p.ndim == 1)


def run(module: torch.nn.Module, x: torch.Tensor):
    x = x.clone().requires_grad_()
    y = module(x)
    (y * torch.linspace(-1, 2, y.numel(), dtype=y.dtype).view_as(y).sin()).sum().backward()
    return {"output": y, "input": x.grad, **{k: p.grad for k, p in module.named_parameters()}}


def worst(theirs, ours, x) -> float:
    a, b = run(theirs, x), run(ours, x)
    assert a.keys() == b.keys()
    scale = 1e-3 * max(v.abs().max().item() for k, v in a.items() if k not in ("output", "input"))
    return max(((b[k] - v).abs().max() / max(v.abs().max().item(), scale)).item() for k, v in a.items())


def tokens(config) -> torch.Tensor:
    shape = (2, 3, 4, 4) if "patch_embedding_config" in config[0] else (2, 5, 16)
    return torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.parametrize("case", CASES)
def test_the_twin_equals_the_real_factory(case, factory):
    config = CASES[case]
    theirs = factory(config).double()
    fill(theirs)
    before = copy.deepcopy(config)
    ours = xformer(config, RELEASE).double()
    assert config == before
    assert list(ours.state_dict()) == list(theirs.state_dict())
    assert [k for k, _ in ours.named_parameters()] == [k for k, _ in theirs.named_parameters()]
    ours.load_state_dict(theirs.state_dict())
    assert worst(theirs, ours, tokens(config)) < TOLERANCE


def test_a_planted_eps_is_seen(factory):
    theirs = factory(CASES["pre, separate True"]).double()
    fill(theirs)
    ours = xformer(CASES["pre, separate True"], RELEASE).double()
    ours.load_state_dict(theirs.state_dict())
    ours.encoders[1].wrap_ff.layer.norm.eps = 1e-6
    assert worst(theirs, ours, torch.randn(2, 5, 16, dtype=torch.float64)) > 1e-8
