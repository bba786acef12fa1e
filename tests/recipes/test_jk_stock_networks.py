"""Networks as their libraries make them, which were trained so: no error, and no warning of what is by design."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from vitconv.checks.base.plan import Plan
from vitconv.checks.base.run import run_one
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


@pytest.mark.parametrize(("count", "level"), [(1, "warn"), (500, "fail")], ids=["float32s-share", "bfloat16s-share"])
def test_one_stray_value_in_a_million_does_not_stop_a_training(count: int, level: str) -> None:
    context = context_of("vit_tiny", Wanted(("depth=2", "image=32", "patch=8")))
    weights = dict(context.canonical)
    weights["blocks.1.mlp.up.weight"].view(-1)[:count] = -2.0
    stray = audit_tensors(weights, context.facts).found("stray-minus-two")
    assert stray is not None
    assert stray.level == level
