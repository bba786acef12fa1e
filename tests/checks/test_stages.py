"""Networks in stages and gains that start at 0: each check fires on a planted fault and is silent on its twin."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from vitconv.checks.base.context import Context
from vitconv.checks.base.plan import Plan
from vitconv.checks.base.target import Wanted, context_of


def scaled(name: str, factor: float) -> Callable[[dict[str, torch.Tensor]], Any]:
    return lambda weights: weights[name].mul_(factor)


def nan_in(name: str) -> Callable[[dict[str, torch.Tensor]], Any]:
    return lambda weights: weights[name].view(-1)[3:4].fill_(math.nan)


def swin(tmp_path: Path, *, v2: bool = False, plant: Callable[[dict[str, torch.Tensor]], Any] | None = None) -> Context:
    import timm
    from safetensors.torch import save_file

    torch.manual_seed(0)
    size: dict[str, Any] = {"embed_dim": 48, "depths": (2, 2), "num_heads": (2, 4), "num_classes": 10}
    name = "swinv2_tiny_window8_256" if v2 else "swin_tiny_patch4_window7_224"
    model = timm.create_model(name, img_size=32, window_size=4, **size)
    weights = {k: t.clone() for k, t in model.state_dict().items()}
    if plant is not None:
        plant(weights)
    path = tmp_path / "swin.safetensors"
    save_file(weights, path)
    return context_of(path, Wanted(sets=("window=4", "pretrained_window=0") if v2 else ()))


WITH_STAGES = ("decay-groups", "facts", "init-audit", "fp16-gradients", "gradient-profile", "loss-at-init", "signals")


@pytest.mark.parametrize("name", [*WITH_STAGES, "fp16-headroom", "example-leakage", "stream-growth"])
def test_a_healthy_swin_is_looked_at_and_gives_no_warning(name: str, tmp_path: Path, check: Any, faults: Any) -> None:
    found = check(name, swin(tmp_path))
    assert found.findings, found.skipped
    assert [f.text for f in faults(found)] == []


@pytest.mark.parametrize("library", ["timm", "pvt", "pvt_v2"])
@pytest.mark.parametrize("name", ["facts", "init-audit", "decay-groups"])
def test_a_healthy_pyramid_gives_no_warning(name: str, library: str, check: Any, faults: Any) -> None:
    found = check(name, context_of(pyramid(library), Wanted()))
    assert found.findings, found.skipped
    assert [f.text for f in faults(found)] == []


def test_a_pyramid_whose_last_stage_lacks_its_norm_is_told(check: Any, faults: Any) -> None:
    context = context_of(pyramid("timm"), Wanted())
    assert context.weights is not None
    # That of the first stage stays.
    less = {n: w for n, w in context.weights.items() if not n.startswith("stages.1.norm.")}
    assert len(less) == len(context.weights) - 2
    assert any("no norm stands" in f.text for f in faults(check("facts", dataclasses.replace(context, weights=less))))


def pyramid(library: str) -> Any:
    size: dict[str, Any] = {"depths": [2, 2], "mlp_ratios": [4, 4], "sr_ratios": [2, 1]}
    torch.manual_seed(0)
    if library == "timm":
        from timm.models import PyramidVisionTransformerV2

        return PyramidVisionTransformerV2(embed_dims=[48, 96], num_heads=[2, 4], num_classes=10, **size)
    import transformers

    if library == "pvt":
        size["sequence_reduction_ratios"] = size.pop("sr_ratios")
    config = transformers.AutoConfig.for_model(
        library, hidden_sizes=[48, 96], num_attention_heads=[2, 4], num_labels=10, image_size=64, **size,
        num_encoder_blocks=2, patch_sizes=[7, 3] if library == "pvt_v2" else [4, 2], strides=[4, 2],
    )  # fmt: skip
    return transformers.AutoModelForImageClassification.from_config(config)


@pytest.mark.parametrize(
    ("name", "plant", "says"),
    [
        ("init-audit", nan_in("layers.1.blocks.0.mlp.fc1.weight"), "NaN"),
        ("init-audit", scaled("layers.0.blocks.1.attn.qkv.weight", 0.0), "all zero"),
        ("signals", nan_in("layers.1.blocks.0.mlp.fc1.weight"), "stages.1.blocks.0"),
        ("signals", scaled("layers.0.blocks.1.mlp.fc2.weight", 3e8), "stages.0.blocks.1 reaches"),
        ("gradient-profile", scaled("layers.1.blocks.1.attn.qkv.weight", 1e-7), "rho"),
        ("fp16-headroom", scaled("layers.0.blocks.0.mlp.fc2.weight", 1e9), "stages.0.blocks.0.mlp.down"),
    ],
)
def test_a_fault_planted_in_a_stage_is_found(name: str, plant: Any, says: str, tmp_path: Path, check: Any) -> None:
    found = check(name, swin(tmp_path, plant=plant))
    assert any(f.level in ("warn", "error") and says in f.text + " ".join(f.where) for f in found.findings), [
        f.text for f in found.findings
    ]


@pytest.mark.parametrize("name", ["attention", "training-probe", "width-scaling"])
def test_what_is_not_worked_out_in_stages_is_said(name: str, tmp_path: Path, check: Any) -> None:
    found = check(name, swin(tmp_path))
    assert not found.findings
    assert "window" in found.skipped or "stages" in found.skipped


# (norm, scheme, steps at lr 1e-3): as far as a gain can come.
@pytest.mark.parametrize(
    ("scheme", "steps", "level", "opens"),
    [
        ("small-gain", 150, "info", False),
        ("small-gain", 300, "info", True),
        ("timm-moco", 150, "ok", True),
    ],
    ids=["short", "longer", "gain-1"],
)
def test_how_far_gains_can_open_in_the_steps_planned(
    scheme: str, steps: int, level: str, opens: bool, network: Any, check: Any
) -> None:
    context = network("norm=res-post", scheme=scheme, plan=Plan(lr=1e-3, steps=steps, warmup=40))
    found = check("gate-growth", context)
    assert found.level == level
    assert ("no step of this plan" in found.findings[0].text) != opens
    if level != "ok":
        total = sum(context.plan.lr_at(i) for i in range(steps))
        figures = found.findings[0].figures
        assert figures["reach"] == pytest.approx(total)
        assert (figures["step"] > 0) == opens


@pytest.mark.parametrize("sets", [(), ("layer_scale=true",)], ids=["pre", "layer-scale"])
def test_pre_norm_branches_are_no_matter_of_gate_growth(sets: tuple[str, ...], network: Any, check: Any) -> None:
    found = check("gate-growth", network(*sets, scheme="dinov2" if sets else "timm"))
    assert not found.findings


def test_gains_of_a_swin_v2(tmp_path: Path, check: Any) -> None:
    context = dataclasses.replace(swin(tmp_path, v2=True), plan=Plan(steps=100))
    found = check("gate-growth", context)
    assert found.level == "info"
    assert "no step of this plan" in found.findings[0].text


class Wrapped(torch.nn.Module):
    """A small network, and what is done with its logits."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        import timm

        torch.manual_seed(0)
        size: dict[str, Any] = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 2, "num_heads": 4}
        self.inner = timm.create_model("vit_tiny_patch16_224", num_classes=10, **size)
        self.kind = kind

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.kind == "batch-mean":
            return self.inner(x - x.mean(0, keepdim=True))
        y = self.inner(x)
        return y.softmax(-1) if self.kind == "softmax" else y * math.inf if self.kind == "infinite" else y


@pytest.mark.parametrize(
    ("kind", "name", "level", "says"),
    [
        ("plain", "loss-at-init", "ok", ""),
        ("softmax", "loss-at-init", "warn", "probabilities"),
        ("infinite", "example-leakage", "ok", "not finite beside"),
        ("batch-mean", "example-leakage", "error", "100%"),
        ("batch-mean", "dropout-alive", "ok", "nothing random"),
        ("plain", "facts", "ok", ""),
        ("half", "facts", "error", "float16"),
        ("frozen", "gradient-profile", "warn", "requires_grad"),
    ],
)
def test_faults_around_a_network(
    kind: str, name: str, level: str, says: str, check: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make() -> torch.nn.Module:
        model = Wrapped(kind)
        if kind == "frozen":
            model.inner.blocks.requires_grad_(False)
        return model.half() if kind == "half" else model

    module = ModuleType("made_here")
    module.make = make  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "made_here", module)
    found = check(name, context_of("python:made_here:make", Wanted(sets=("image_size=32",))))
    assert found.level == level
    assert says in " ".join(f.text for f in found.findings) + found.skipped
