"""The reference ViT against timm's VisionTransformer: outputs and every gradient, in float64."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from vitconv.layout.semantics import Semantics
from vitconv.vit.config import config_from_shapes
from vitconv.vit.model import ViT

timm = pytest.importorskip("timm")
from timm.layers import RmsNorm, SwiGLUPacked  # noqa: E402
from timm.models.deit import VisionTransformerDistilled  # noqa: E402
from timm.models.vision_transformer import ResPostBlock, VisionTransformer  # noqa: E402

FACTS = Semantics(
    heads=4,
    norm_placement="pre",
    norm_eps=1e-6,
    final_norm_eps=1e-6,
    embed_norm_eps=1e-6,
    qk_norm_eps=1e-6,
    activation="gelu",
    attention="softmax",
    kv_normalised=True,
    pooling="token",
)

AVG = {"pooling": "avg"}
EPS5 = {"norm_eps": 1e-5, "final_norm_eps": 1e-5}

# name: (constructor arguments, facts that differ, class)
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], type[nn.Module]]] = {
    "plain": ({}, {}, VisionTransformer),
    "eps 1e-5": ({"norm_layer": nn.LayerNorm}, EPS5, VisionTransformer),
    "registers": ({"reg_tokens": 2}, {}, VisionTransformer),
    "registers without positions": ({"reg_tokens": 3, "no_embed_class": True}, {}, VisionTransformer),
    "distilled": ({}, {}, VisionTransformerDistilled),
    "layer scale": ({"init_values": 0.1}, {}, VisionTransformer),
    "qk-norm": ({"qk_norm": True}, {}, VisionTransformer),
    "inner norms": ({"scale_attn_norm": True, "scale_mlp_norm": True}, {}, VisionTransformer),
    "SwiGLU packed": (
        {"mlp_layer": SwiGLUPacked, "act_layer": nn.SiLU},
        {"activation": "silu"},
        VisionTransformer,
    ),
    "average, norm after": ({"global_pool": "avg"}, AVG, VisionTransformer),
    "average, norm before": ({"global_pool": "avg", "fc_norm": False}, AVG, VisionTransformer),
    "average with prefix": (
        {"global_pool": "avg", "pool_include_prefix": True, "reg_tokens": 2},
        {"pooling": "avg-prefix"},
        VisionTransformer,
    ),
    "no class token": (
        {"global_pool": "avg", "class_token": False, "no_embed_class": True},
        AVG,
        VisionTransformer,
    ),
    "norm before the blocks": (
        {"pre_norm": True, "act_layer": "quick_gelu"},
        {"activation": "quick_gelu"},
        VisionTransformer,
    ),
    "res-post": ({"block_fn": ResPostBlock}, {"norm_placement": "res-post"}, VisionTransformer),
    "no biases": (
        {"qkv_bias": False, "proj_bias": False, "act_layer": nn.ReLU},
        {"activation": "relu"},
        VisionTransformer,
    ),
    "RMSNorm": ({"norm_layer": partial(RmsNorm, eps=1e-6)}, {"norm_kind": "rmsnorm"}, VisionTransformer),
    "no head": ({"num_classes": 0}, {}, VisionTransformer),
    "tanh GELU": ({"act_layer": "gelu_tanh"}, {"activation": "gelu_tanh"}, VisionTransformer),
}
TOLERANCE = 1e-12


def pair(case: str, randomise, timm_to_canonical, **more):
    arguments, facts, cls = CASES[case]
    registers, gated = arguments.get("reg_tokens", 0), "mlp_layer" in arguments
    arguments = {
        "img_size": (8, 12),
        "patch_size": 4,
        "embed_dim": 32,
        "depth": 3,
        "num_heads": 4,
        "num_classes": 7,
        **arguments,
    }
    model = randomise(cls(**arguments).double().eval())
    weights = timm_to_canonical(model.state_dict(), registers, gated)
    shapes = {k: tuple(v.shape) for k, v in weights.items()}
    ours = ViT(config_from_shapes(shapes, FACTS.replaced(facts).replaced(more))).double()
    ours.load_state_dict(weights, strict=True)
    return model, ours, lambda tensors: timm_to_canonical(tensors, registers, gated)


def worst(model, ours, carry, relative) -> float:
    """The largest relative difference of output, input gradient and parameter gradients."""
    g = torch.Generator().manual_seed(1)
    images = torch.randn(3, 3, 8, 12, generator=g, dtype=torch.float64)
    results = []
    for net in (model, ours):
        x = images.clone().requires_grad_()
        y = net(x)
        weight = torch.randn(y.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
        net.zero_grad()
        (y * weight).sum().backward()
        results.append((y, x.grad, {k: p.grad for k, p in net.named_parameters()}))
    theirs, mine = results
    gradients = carry(theirs[2])
    assert gradients.keys() == mine[2].keys()
    # A key bias has a true-zero gradient: the largest gradient of the network is the yardstick there.
    scale = 1e-3 * max(v.abs().max().item() for v in gradients.values())
    errors = [relative(mine[0], theirs[0]), relative(mine[1], theirs[1])]
    return max(errors + [relative(mine[2][k], v, scale) for k, v in gradients.items()])


@pytest.mark.parametrize("case", CASES)
def test_reference_equals_timm(case, randomise, timm_to_canonical, relative):
    assert worst(*pair(case, randomise, timm_to_canonical), relative) < TOLERANCE


@pytest.mark.parametrize(
    ("fact", "value", "at_least"),
    [
        ("norm_eps", 1e-5, 1e-8),
        ("final_norm_eps", 1e-5, 1e-8),
        ("activation", "gelu_tanh", 1e-5),
        ("heads", 8, 1e-2),
        ("norm_placement", "post", 1e-2),
        ("norm_placement", "res-post", 1e-2),
        ("kv_normalised", False, 1e-2),
        ("pooling", "avg", 1e-2),
        ("attention_scale", 0.36, 1e-3),
        ("attention", "causal", 1e-2),
    ],
)
def test_a_wrong_fact_is_seen(fact, value, at_least, randomise, timm_to_canonical, relative):
    assert worst(*pair("plain", randomise, timm_to_canonical, **{fact: value}), relative) > at_least


def test_taps_are_what_timm_computes(randomise, timm_to_canonical, relative):
    model, ours, _ = pair("layer scale", randomise, timm_to_canonical)
    images = torch.randn(2, 3, 8, 12, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    seen: dict[str, torch.Tensor] = {}
    for name, module in model.named_modules():
        module.register_forward_hook(lambda _m, _i, out, name=name: seen.__setitem__(name, out))
    taps: dict[str, torch.Tensor] = {}
    with torch.no_grad():
        model(images)
        ours(images, taps)
    names = ["norm", "head"] + [f"blocks.{i}{part}" for i in range(3) for part in ("", ".attn", ".mlp")]
    assert sorted(taps) == sorted([*names, "embed", "pool"])
    assert max(relative(taps[n], seen[n]) for n in names) < TOLERANCE
    assert relative(taps["pool"], seen["norm"][:, 0]) < TOLERANCE
    assert relative(taps["embed"], seen["norm_pre"]) < TOLERANCE
    handles = sum(len(m._forward_hooks) for m in ours.modules())
    assert handles == 0
