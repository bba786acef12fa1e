"""What the authors' own code computes, reproduced by another library from the converted weights: outputs and gradients.

The traces in fixtures/golden are of tiny networks of float64, every parameter random; see the facts in their metadata.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from vitconv.conversion.translate import translate

FOLDER = Path(__file__).parents[2] / "fixtures" / "golden"
TINY = {"img_size": 16, "patch_size": 4, "embed_dim": 16, "depth": 2, "num_heads": 2}
HF = {
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "patch_size": 4,
    # The eager form takes the softmax in float32.
    "attn_implementation": "sdpa",
}


def timm_vit(**more: Any) -> nn.Module:
    import timm

    return timm.models.VisionTransformer(**{**TINY, "num_classes": 0, **more})


def timm_distilled() -> nn.Module:
    from timm.models.deit import VisionTransformerDistilled

    return VisionTransformerDistilled(**TINY, num_classes=5)


def timm_beit(**more: Any) -> nn.Module:
    from timm.models.beit import Beit

    return Beit(**{**TINY, "img_size": (16, 24), "num_classes": 5, "init_values": 0.1, **more})


def timm_eva(**more: Any) -> nn.Module:
    from timm.models.eva import Eva

    return Eva(**{**TINY, "embed_dim": 32, **more})


def timm_dinov3(**more: Any) -> nn.Module:
    return timm_eva(
        num_classes=0,
        mlp_ratio=3,
        use_abs_pos_emb=False,
        use_rot_pos_emb=True,
        rope_type="dinov3",
        rope_temperature=100,
        rope_rotate_half=True,
        dynamic_img_size=True,
        init_values=1.0,
        global_pool="token",
        norm_layer=lambda n, **k: nn.LayerNorm(n, eps=1e-5, **{x: y for x, y in k.items() if x != "eps"}),
        **more,
    )


def hf(name: str, config: str, **more: Any) -> nn.Module:
    import transformers

    made = getattr(transformers, f"{config}Config")(**{**HF, "hidden_size": 16, "image_size": 16, **more})
    cls = getattr(transformers, name)
    return cls(made, add_pooling_layer=False) if name == "ViTModel" else cls(made)


def token(module: nn.Module, x: Tensor) -> Tensor:
    return module(x).last_hidden_state[:, 0]


def every(module: nn.Module, x: Tensor) -> Tensor:
    return module(x).last_hidden_state


def call(module: nn.Module, x: Tensor) -> Tensor:
    y = module(x)
    # A distilled network answers with both heads.
    return (y[0] + y[1]) / 2 if isinstance(y, tuple) else y


def patches(module: nn.Module, x: Tensor) -> Tensor:
    return module.forward_features(x)


def dinov2(**more: Any) -> Callable[[], nn.Module]:
    kind = "Dinov2WithRegisters" if "num_register_tokens" in more else "Dinov2"
    return lambda: hf(f"{kind}Model", kind, layer_norm_eps=1e-6, **more)


def dinov3(**more: Any) -> Callable[[], nn.Module]:
    sizes = {"hidden_size": 32, "intermediate_size": 96, "num_register_tokens": 3, "layer_norm_eps": 1e-5}
    return lambda: hf("DINOv3ViTModel", "DINOv3ViT", **{**sizes, **more})


Case = tuple[str, str, str, Callable[[], nn.Module], Callable[[nn.Module, Tensor], Tensor], tuple[str, ...]]
MASK = ("embed.mask",)
SPLIT = {"attention": "split", "mlp": "SwiGLU"}
CHOICES = {"eva-02": SPLIT, "eva-02-mlp": {**SPLIT, "mlp": "Mlp"}}
# These libraries compute the waves of rotary positions in float32, whatever the network is in.
FLOAT32 = {"dinov3", "dinov3-timm", "dinov3-swiglu", "dinov3-no-bias", "eva-02", "eva-02-mlp"}
CASES: dict[str, Case] = {
    "dino": ("dino/dino-tiny", "dino", "timm", timm_vit, call, ()),
    "dino-hf": (
        "dino/dino-tiny",
        "dino",
        "hf-vit-5",
        lambda: hf("ViTModel", "ViT", layer_norm_eps=1e-6, intermediate_size=64),
        token,
        (),
    ),
    "moco-v3": ("moco-v3/moco-v3-tiny", "moco-v3", "timm", lambda: timm_vit(num_classes=5), call, ()),
    "ijepa": (
        "ijepa/ijepa-tiny",
        "ijepa",
        "timm",
        lambda: timm_vit(class_token=False, global_pool="avg", fc_norm=False),
        patches,
        (),
    ),
    "ijepa-hf": (
        "ijepa/ijepa-tiny",
        "ijepa",
        "hf-ijepa-5",
        lambda: hf("IJepaModel", "IJepa", layer_norm_eps=1e-6, intermediate_size=64),
        every,
        (),
    ),
    "deit-distilled": ("deit/deit-distilled", "deit", "timm", timm_distilled, call, ()),
    "deit-3": (
        "deit/deit-3",
        "deit",
        "timm",
        lambda: timm_vit(num_classes=5, no_embed_class=True, init_values=1e-5),
        call,
        (),
    ),
    "dinov2": ("dinov2/dinov2-plain", "dinov2", "hf-dinov2-5", dinov2(), token, ()),
    "dinov2-timm": ("dinov2/dinov2-plain", "dinov2", "timm", lambda: timm_vit(init_values=1.0), call, MASK),
    "dinov2-registers": (
        "dinov2/dinov2-registers",
        "dinov2",
        "hf-dinov2-registers-5",
        dinov2(num_register_tokens=3),
        token,
        (),
    ),
    "dinov2-swiglu": ("dinov2/dinov2-swiglu", "dinov2", "hf-dinov2-5", dinov2(use_swiglu_ffn=True), token, ()),
    "dinov3": ("dinov3/dinov3-masked", "dinov3", "hf-dinov3-5", dinov3(), token, ()),
    "dinov3-timm": (
        "dinov3/dinov3-masked",
        "dinov3",
        "timm-eva",
        lambda: timm_dinov3(num_reg_tokens=3),
        call,
        MASK,
    ),
    "dinov3-swiglu": (
        "dinov3/dinov3-swiglu",
        "dinov3",
        "hf-dinov3-5",
        dinov3(use_gated_mlp=True, hidden_act="silu", intermediate_size=64),
        token,
        (),
    ),
    "dinov3-no-bias": (
        "dinov3/dinov3-no-bias",
        "dinov3",
        "hf-dinov3-5",
        dinov3(num_register_tokens=0, query_bias=False, value_bias=False),
        token,
        (),
    ),
    "beit": (
        "beit/beit-author",
        "beit",
        "beit",
        lambda: timm_beit(use_rel_pos_bias=True, use_abs_pos_emb=False),
        call,
        (),
    ),
    "beit-hf": (
        # On other grids transformers exchanges the sides of the table (5.24.0).
        "beit/beit-author-square",
        "beit",
        "hf-beit-5",
        lambda: hf(
            "BeitForImageClassification",
            "Beit",
            intermediate_size=64,
            num_labels=5,
            use_relative_position_bias=True,
            layer_norm_eps=1e-6,
        ),
        lambda m, x: m(x).logits,
        (),
    ),
    "beit-shared": (
        "beit/beit-author-shared",
        "beit",
        "beit",
        lambda: timm_beit(use_shared_rel_pos_bias=True, use_abs_pos_emb=True, global_pool="token"),
        call,
        (),
    ),
    "eva-02": (
        "eva/eva-02",
        "eva",
        "timm-eva",
        lambda: timm_eva(
            num_classes=5,
            qkv_fused=False,
            swiglu_mlp=True,
            scale_mlp=True,
            use_rot_pos_emb=True,
            ref_feat_shape=(4, 4),
        ),
        call,
        (),
    ),
    "eva-02-mlp": (
        "eva/eva-02-mlp",
        "eva",
        "timm-eva",
        lambda: timm_eva(
            num_classes=5,
            qkv_fused=False,
            scale_mlp=True,
            use_rot_pos_emb=True,
            ref_feat_shape=(2, 2),
            global_pool="token",
        ),
        call,
        (),
    ),
}


def timm_clip(**more: Any) -> nn.Module:
    from timm.layers import QuickGELU

    act = QuickGELU if "act_layer" not in more else more.pop("act_layer")
    return timm_vit(pre_norm=True, act_layer=act, norm_layer=lambda n, **k: nn.LayerNorm(n, eps=1e-5), **more)


def timm_flax(**more: Any) -> nn.Module:
    from timm.layers import GELUTanh

    return timm_vit(act_layer=GELUTanh, **{"num_classes": 5, "mlp_ratio": 1.5, **more})


CASES |= {
    "clip": ("clip/clip-tower", "clip", "timm", lambda: timm_clip(num_classes=16), call, ()),
    "clip-hf": (
        "clip/clip-tower",
        "clip",
        "hf-clip-vision",
        lambda: hf("CLIPVisionModelWithProjection", "CLIPVision", intermediate_size=64, projection_dim=16),
        lambda m, x: m(x).image_embeds,
        (),
    ),
    "open-clip": (
        "open-clip/open-clip-tower",
        "open-clip",
        "timm",
        lambda: timm_clip(act_layer=nn.GELU, init_values=0.1, num_classes=10),
        call,
        (),
    ),
    # Without a final norm, so nothing is pooled after one.
    "internvit": (
        "internvit/internvit-tiny",
        "internvit",
        "timm",
        lambda: timm_vit(mlp_ratio=3, init_values=0.1, final_norm=False, fc_norm=False),
        call,
        (),
    ),
    "vit-jax": ("npz/vit-jax-current", "vit-jax", "timm", timm_flax, call, ()),
    "big-vision-token": (
        "npz/big-vision-token",
        "big-vision",
        "timm",
        lambda: timm_flax(no_embed_class=True),
        call,
        (),
    ),
    "big-vision-map": (
        "npz/big-vision-map",
        "big-vision",
        "timm",
        lambda: with_pool(timm_flax(class_token=False, global_pool="map")),
        call,
        (),
    ),
    "big-vision-scan": (
        "npz/big-vision-scan",
        "big-vision",
        "timm",
        lambda: with_pool(timm_flax(class_token=False, global_pool="map")),
        call,
        (),
    ),
    "mmpretrain": ("mmpretrain/mmpretrain-tiny", "mmpretrain", "timm", lambda: timm_vit(mlp_ratio=1.5), call, ()),
    "mmpretrain-clip": (
        "mmpretrain/mmpretrain-clip",
        "mmpretrain",
        "timm",
        lambda: timm_vit(mlp_ratio=1.5, pre_norm=True, init_values=0.1),
        call,
        (),
    ),
    "vit-pytorch": (
        "vit-pytorch/vit-pytorch-0.40.2",
        "vit-pytorch",
        "timm",
        lambda: timm_vit(
            num_classes=5, mlp_ratio=1.5, qkv_bias=False, norm_layer=lambda n, **k: nn.LayerNorm(n, eps=1e-5)
        ),
        call,
        (),
    ),
}
AXES = {"vit-pytorch": {"p": 4, "q": 4}}


def with_pool(module: Any) -> nn.Module:
    """Give timm's pooling head the MLP width and the eps of the trunk, which it does not take from its arguments."""
    from timm.layers import AttentionPoolLatent, GELUTanh

    module.attn_pool = AttentionPoolLatent(
        16, num_heads=2, mlp_ratio=1.5, norm_layer=lambda n, **k: nn.LayerNorm(n, eps=1e-6), act_layer=GELUTanh
    )
    return module


def weights_of(name: str) -> dict[str, Tensor]:
    """Return the state dict, or the arrays of a flax network, as torch tensors."""
    if name.startswith("npz/"):
        return {k: torch.from_numpy(v) for k, v in np.load(FOLDER / f"{name}.npz").items()}
    loaded: dict[str, Tensor] = torch.load(FOLDER / f"{name}.pth", weights_only=True)
    return loaded


def read(name: str) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Any]]:
    """Return state dict, trace and facts of one golden file."""
    weights = weights_of(name)
    path = FOLDER / f"{name}.trace.safetensors"
    with safe_open(path, "pt") as f:
        facts = json.loads(f.metadata()["facts"])
    return weights, load_file(path), facts


def near(a: Tensor, b: Tensor, scale: float = 0.0) -> float:
    return float((a - b).detach().abs().max()) / (scale or float(b.detach().abs().max()))


@pytest.mark.parametrize("name", CASES)
def test_another_library_computes_what_the_author_s_code_did(name: str) -> None:
    path, source, target, build, forward, drop = CASES[name]
    weights, trace, _ = read(path)
    told: dict[str, Any] = {"choices": CHOICES.get(name), "axes": AXES.get(name), "drop": drop}
    there = translate(weights, source, target, **told)
    module = build().double().eval()
    module.load_state_dict(there)
    close = 2e-6 if name in FLOAT32 else 1e-12
    x = trace["input"].clone().requires_grad_()
    y = forward(module, x)
    assert near(y, trace["output"]) < close
    y.backward(trace["grad_output"])
    assert x.grad is not None
    assert near(x.grad, trace["grad.input"]) < 10 * close
    own = {k.removeprefix("grad."): v for k, v in trace.items() if k.startswith("grad.") and k != "grad.input"}
    # Fixed position tables have none.
    grads = {k: own.get(k, torch.full_like(v, torch.nan)) for k, v in weights.items() if v.is_floating_point()}
    moved = translate(grads, source, target, "gradients", **told)
    found = {k: p.grad for k, p in module.named_parameters() if p.grad is not None and p.numel()}
    assert set(found) <= set(moved)
    # A key bias has no gradient but noise, so all are measured by the largest.
    scale = max(float(g.abs().max()) for g in found.values())
    off = {k: near(g, moved[k], scale) for k, g in found.items() if not moved[k].isnan().all()}
    made_up = {"head.bias"} if "clip" in name else set()
    assert {k: v for k, v in off.items() if not v < 10 * close and k not in made_up} == {}


def test_a_wrong_order_would_be_seen() -> None:
    """Keys and values exchanged fail by far: the comparison is no formality."""
    path, source, target, build, forward, _ = CASES["dino"]
    weights, trace, _ = read(path)
    qkv = weights["blocks.0.attn.qkv.weight"]
    weights["blocks.0.attn.qkv.weight"] = torch.cat([qkv[:16], qkv[32:], qkv[16:32]])
    module = build().double().eval()
    module.load_state_dict(translate(weights, source, target))
    assert near(forward(module, trace["input"]), trace["output"]) > 1e-3
