"""Networks as their libraries make them, which were trained so: no error, and no warning of what is by design."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from vitconv.checks.base.plan import Plan
from vitconv.checks.base.run import all_checks, run_one
from vitconv.checks.base.target import Wanted, context_of
from vitconv.inits.audit.audit import audit_tensors
from vitconv.registry import CHECKS, load

timm = pytest.importorskip("timm")
CHECKED = ("first-step", "fp16-gradients", "norm-eps", "signals", "gradient-profile", "fp16-headroom", "loss-at-init")
SMALL = ("img_size=32", "depth=2", "embed_dim=96", "num_heads=4", "num_classes=10")


@pytest.mark.parametrize(
    ("name", "more"),
    [
        pytest.param("vit_tiny_patch16_224", (), id="timm"),
        pytest.param("vit_tiny_patch16_224", ("init_values=1e-5",), id="dinov2-like"),
        pytest.param("deit3_small_patch16_224", (), id="deit3-LayerScale-1e-6-class-token-1e-6"),
        pytest.param("beit_base_patch16_224", (), id="beit-head-2e-5"),
        pytest.param("vit_tiny_patch16_224", ("reg_tokens=4",), id="registers-1e-6"),
        pytest.param("vit_base_patch16_rpn_224", (), id="res-post-norm-gain-1e-5"),
        pytest.param("vit_tiny_patch16_224", ("weight_init=jax_nlhb",), id="zero-head"),
    ],
)
def test_what_a_library_makes_has_no_error_or_warning(name: str, more: tuple[str, ...]) -> None:
    context = context_of(f"timm:{name}", Wanted((*SMALL, *more), plan=Plan(batch=4)))
    told = [(c, f.text) for c in CHECKED for f in run_one(context, load(CHECKS, c)).findings
            if f.level in ("error", "warn")]  # fmt: skip
    assert told == []


SIZED = ("img_size=64", "depth=2", "embed_dim=96", "num_heads=4", "num_classes=10")
WIDE = ("hidden_size=96", "num_hidden_layers=2", "num_attention_heads=4", "intermediate_size=384", "image_size=64")
SWIN = ("img_size=64", "window_size=4", "embed_dim=24", "depths=(1,1,1,1)", "num_classes=10")
STOCK: dict[str, tuple[str, tuple[str, ...]]] = {
    # eps 1e-5: class tokens and registers of std .02, branches of Swin-v2 behind a gain of 0.
    "timm-dinov3": ("timm:vit_small_patch16_dinov3", SIZED),
    "timm-swinv2": ("timm:swinv2_tiny_window8_256", SWIN),
    "timm-clip": ("timm:vit_base_patch32_clip_224", ("patch_size=16", *SIZED)),
    "timm-dinov2-registers": ("timm:vit_small_patch14_reg4_dinov2", ("img_size=56", *SIZED[1:])),
    "timm-siglip": ("timm:vit_base_patch16_siglip_224", SIZED),
    "timm-eva": ("timm:eva_giant_patch14_224", ("img_size=56", *SIZED[1:])),
    "timm-eva02": ("timm:eva02_tiny_patch14_224", ("img_size=56", *SIZED[1:])),
    "timm-swin": ("timm:swin_tiny_patch4_window7_224", SWIN),
    "transformers-clip": ("transformers:clip_vision_model", WIDE),
    "transformers-siglip": ("transformers:siglip_vision_model", ("patch_size=16", *WIDE)),
    "transformers-beit": ("transformers:beit", WIDE),
    "transformers-vit": ("transformers:vit", WIDE),
    # Positions that start at zero and are trained.
    "transformers-deit": ("transformers:deit", WIDE),
    "transformers-siglip2": ("transformers:siglip2_vision_model", ("num_patches=16", *WIDE[:4])),
    "transformers-dinov3": ("transformers:dinov3_vit", WIDE),
    "transformers-mae": ("transformers:vit_mae", WIDE),
    "transformers-dinov2-registers": ("transformers:dinov2_with_registers", ("num_register_tokens=4", *WIDE)),
}
# transformers' DINOv2 and DINOv3 start LayerScale at 1, where their papers have 1e-5; MAE's positions are frozen zeros.
KNOWN = {
    "transformers-dinov3": "LayerScale is 1",
    "transformers-dinov2-registers": "LayerScale is 1",
    "transformers-mae": "position table is all zero",
}


@pytest.mark.parametrize("name", STOCK)
def test_nothing_that_is_by_design_is_a_warning_in_any_check(name: str) -> None:
    target, sets = STOCK[name]
    pytest.importorskip(target.partition(":")[0])
    context = context_of(target, Wanted(sets, plan=Plan(batch=4)))
    outcomes = [(c.id, run_one(context, c)) for c in all_checks() if c.cost in ("facts", "pass", "half")]
    told = [f"{i}: {f.text}" for i, o in outcomes for f in o.findings if f.level in ("error", "warn")]
    assert [text for text in told if name not in KNOWN or KNOWN[name] not in text] == []
    assert len(told) == (name in KNOWN)
    assert [i for i, o in outcomes if o.undecided] == []


OTHERS = {
    "cait": ("cait_xxs24_224", {"img_size": 32, "depth": 2, "embed_dim": 48, "num_heads": 4, "num_classes": 5}),
    "xcit": ("xcit_nano_12_p16_224", {"img_size": 32, "depth": 2, "embed_dim": 48, "num_heads": 4, "num_classes": 5}),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_no_layout_explains_has_no_error_either(name: str) -> None:
    torch.manual_seed(0)
    net = timm.create_model(OTHERS[name][0], **OTHERS[name][1])
    images = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    context = context_of(net, Wanted(plan=Plan(batch=4)), images=images)
    told = [(c, f.text) for c in (*CHECKED, "init-audit") for f in run_one(context, load(CHECKS, c)).findings
            if f.level in ("error", "warn")]  # fmt: skip
    assert told == []


def transformers(config: str, made: str) -> Any:
    library = pytest.importorskip("transformers")
    sizes = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 192}
    torch.manual_seed(0)
    return getattr(library, made)(getattr(library, config)(**sizes, image_size=32, patch_size=8))


@pytest.mark.parametrize(
    ("config", "made"),
    [
        pytest.param("SiglipVisionConfig", "SiglipVisionModel", id="siglip-biases-1e-6"),
        pytest.param("ViTConfig", "ViTModel", id="vit"),
        pytest.param("BeitConfig", "BeitModel", id="beit-class-token-zero"),
    ],
)
def test_what_transformers_makes_was_never_trained(config: str, made: str) -> None:
    context = context_of(transformers(config, made))
    found = context.audit
    assert found.training.state in ("never trained", "undecided"), found.training.reason
    assert found.found("never-trained") is None
    assert found.found("all-zero") is None


def changed(**weights: float) -> Any:
    context = context_of("vit_tiny", Wanted(("depth=2", "dim=48", "heads=3", "image=16", "patch=4", "classes=10")))
    net = context.network.module
    with torch.no_grad():
        for name, p in net.named_parameters():
            for end, factor in weights.items():
                if name.endswith(end.replace("_", ".")):
                    p.mul_(factor)
    return context_of(net, Wanted(plan=Plan(batch=2)))


def test_gradients_that_vanish_without_a_gate_are_an_error() -> None:
    """Every block far too small, and no LayerScale to blame."""
    found = run_one(changed(down_weight=1e-9, out_weight=1e-9), load(CHECKS, "fp16-gradients"))
    assert found.level == "error"


def test_a_stem_of_nothing_still_loses_to_eps() -> None:
    found = run_one(changed(patch_weight=1e-9, patch_bias=0.0, pos=0.0), load(CHECKS, "norm-eps"))
    assert found.level == "warn"


@pytest.mark.parametrize(("count", "level"), [(1, "info"), (500, "fail")], ids=["float32s-share", "bfloat16s-share"])
def test_one_stray_value_in_a_million_does_not_stop_a_training(count: int, level: str) -> None:
    context = context_of("vit_tiny", Wanted(("depth=2", "image=32", "patch=8")))
    weights = dict(context.canonical)
    weights["blocks.1.mlp.up.weight"].view(-1)[:count] = -2.0
    stray = audit_tensors(weights, context.facts).found("stray-minus-two")
    assert stray is not None
    assert stray.level == level
