"""Networks of stages: hosts say what they are, and verify finds them the same, or says where they part."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from vitconv.hosts.base.host import Built, Spec
from vitconv.parity.verify import verify
from vitconv.registry import HOSTS, load

FLATTEN = Path(__file__).parents[2] / "fixtures" / "golden" / "flatten"
TIMM = {"img_size": 32, "patch_size": 2, "num_classes": 5, "embed_dim": 8, "depths": (2, 2), "num_heads": (2, 4)}
HF = {"image_size": 32, "patch_size": 2, "num_labels": 5, "embed_dim": 8, "depths": [2, 2], "num_heads": [2, 4]}
VISION: dict[str, Any] = {"patch_size": [2, 2], "embed_dim": 8, "depths": [2, 2], "num_heads": [2, 4], "num_classes": 5}
ASKS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "timm": ("timm", "swin_tiny_patch4_window7_224", {**TIMM, "window_size": 4}),
    "timm-v2": ("timm", "swinv2_tiny_window8_256", {**TIMM, "window_size": 4}),
    "transformers": ("transformers", "swin", {**HF, "window_size": 4}),
    "transformers-v2": ("transformers", "swinv2", {**HF, "window_size": 4}),
    "torchvision": ("torchvision", "SwinTransformer", {**VISION, "window_size": [4, 4], "image_size": 32}),
}
PYRAMID: dict[str, Any] = {
    "hidden_sizes": [8, 12, 16, 24], "depths": [2, 1, 1, 2], "num_attention_heads": [1, 2, 2, 3], "num_labels": 5,
    "mlp_ratios": [2, 2, 2, 2], "image_size": 64,
}  # fmt: skip
TIMM_PYRAMID: dict[str, Any] = {
    "embed_dims": (8, 12, 16, 24), "depths": (2, 1, 1, 2), "num_heads": (1, 2, 2, 3), "num_classes": 5,
    "mlp_ratios": (2, 2, 2, 2), "image_size": 64,
}  # fmt: skip
# What is asked for, and eps of the norms of patches and reduced keys there.
PYRAMIDS: dict[str, tuple[str, str, dict[str, Any], float]] = {
    "timm pvt v2": ("timm", "pvt_v2_b0", TIMM_PYRAMID, 1e-5),
    "timm pvt v2 linear": ("timm", "pvt_v2_b2_li", TIMM_PYRAMID, 1e-5),
    "transformers pvt": ("transformers", "pvt", PYRAMID, 1e-6),
    "transformers pvt v2": ("transformers", "pvt_v2", PYRAMID, 1e-6),
}


@pytest.mark.parametrize("name", PYRAMIDS)
def test_a_live_pyramid_tells_its_facts(name: str) -> None:
    host, model, options, eps = PYRAMIDS[name]
    b = load(HOSTS, host).build(Spec(model, options))
    facts, v1 = b.facts, name.endswith("pvt")
    assert (facts.stage_heads, facts.window, facts.image_size) == ((1, 2, 2, 3), None, (64, 64))
    assert (facts.norm_eps, facts.embed_norm_eps, facts.final_norm_eps) == (1e-6, eps, 1e-6 if v1 else None)
    assert (facts.attention, facts.activation, facts.norm_placement) == ("softmax", "gelu", "pre")
    assert facts.pooling == ("token" if v1 else "avg")
    assert list(b.taps)[:2] == ["embed", "stages.0.blocks.0"]
    # PVTv2 ends every stage with a norm, and has none behind the last one.
    assert ("norm" in b.taps) == v1
    with torch.no_grad():
        assert b(torch.randn(1, 3, 64, 64)).shape == (1, 5)


def test_images_of_another_size_are_those_of_the_configuration() -> None:
    plain = {k: v for k, v in TIMM_PYRAMID.items() if k != "image_size"}
    assert load(HOSTS, "timm").build(Spec("pvt_v2_b0", plain)).facts.image_size == (224, 224)


@pytest.mark.slow
def test_pyramids_of_two_libraries_are_the_same_but_for_an_eps() -> None:
    args = {"set_a": TIMM_PYRAMID, "set_b": PYRAMID, "precisions": ()}
    result = verify("timm:pvt_v2_b0", "transformers:pvt_v2", **args)  # type: ignore[arg-type]
    assert result.exit_code == 1
    found = {frozenset(n) for n in result.cause.names}
    assert frozenset({"eps-patches-1e-6", "eps-reduced-1e-6"}) in found or frozenset({"eps-everywhere-1e-6"}) in found


def built(name: str) -> Built:
    host, model, options = ASKS[name]
    torch.manual_seed(0)
    return load(HOSTS, host).build(Spec(model, options))


@pytest.mark.parametrize("name", ASKS)
def test_a_live_network_tells_its_facts(name: str) -> None:
    b, v2 = built(name), name.endswith("v2")
    facts = b.facts
    assert (facts.stage_heads, facts.window, facts.image_size) == ((2, 4), (4, 4), (32, 32))
    assert (facts.norm_eps, facts.final_norm_eps, facts.embed_norm_eps) == (1e-5, 1e-5, 1e-5)
    assert (facts.activation, facts.pooling) == ("gelu", "avg")
    assert facts.attention == ("cosine" if v2 else "softmax")
    assert facts.norm_placement == ("res-post" if v2 else "pre")
    assert facts.pretrained_window == ((0, 0) if v2 else None)
    assert b.inputs.shape == (3, 32, 32)
    assert list(b.taps)[:2] == ["embed", "stages.0.blocks.0"]
    with torch.no_grad():
        assert b(torch.randn(1, 3, 32, 32)).shape == (1, 5)


@pytest.mark.slow
@pytest.mark.parametrize("other", ["transformers", "torchvision"])
def test_a_checkpoint_and_a_library_are_found_the_same(other: str, tmp_path: Path) -> None:
    save_file(built("timm").module.state_dict(), tmp_path / "swin.safetensors")
    host, model, options = ASKS[other]
    result = verify(tmp_path / "swin.safetensors", f"{host}:{model}", set_a={"image_size": 32}, set_b=options)
    assert result.exit_code == 0, result


@pytest.mark.slow
@pytest.mark.parametrize("other", ["timm-v2", "transformers-v2"])
def test_a_swin_v2_and_a_library_are_found_the_same(other: str, tmp_path: Path) -> None:
    """Its coordinates are float32 in every codebase, and stay that where all else is computed in float64."""
    save_file(built("timm-v2").module.state_dict(), tmp_path / "swinv2.safetensors")
    host, model, options = ASKS[other]
    told = {"image_size": 32, "window": 4, "pretrained_window": 0}
    result = verify(tmp_path / "swinv2.safetensors", f"{host}:{model}", set_a=told, set_b=options, precisions=())
    assert result.exit_code == 0, result


def test_the_mask_that_transformers_adds_twice_is_noted() -> None:
    assert any("twice" in note for note in built("transformers-v2").notes)


@pytest.mark.slow
def test_shifts_by_the_height_alone_are_found(tmp_path: Path) -> None:
    """One window covers the width of the second map: timm does not shift along it, transformers' Swin V2 does."""
    host, model, options = ASKS["timm-v2"]
    torch.manual_seed(0)
    net = load(HOSTS, host).build(Spec(model, {**options, "img_size": (32, 16)}))
    save_file(net.module.state_dict(), tmp_path / "swinv2.safetensors")
    assert net.facts.window_rule == "timm"
    _, _, hf = ASKS["transformers-v2"]
    told = {"image_size": "32x16", "window": 4, "pretrained_window": 0}
    result = verify(
        tmp_path / "swinv2.safetensors", "transformers:swinv2", set_a=told, set_b={**hf, "image_size": [32, 16]},
        precisions=(),
    )  # fmt: skip
    assert result.exit_code == 1
    assert (result.facts_a.window_rule, result.facts_b.window_rule) == ("timm", "transformers-v2")
    told["window_rule"] = "transformers-v2"
    result = verify(
        tmp_path / "swinv2.safetensors", "transformers:swinv2", set_a=told, set_b={**hf, "image_size": [32, 16]},
        precisions=(),
    )  # fmt: skip
    assert result.exit_code == 0, result


@pytest.mark.slow
@pytest.mark.parametrize(
    ("a", "b", "code"),
    [
        ({"attention": "focused-upstream-fix"}, {"attention": "focused-stable"}, 0),
        ({"attention": "focused-original"}, {"attention": "focused-stable", "focused_eps_mode": "sum"}, 0),
        ({"attention": "focused-original"}, {"attention": "focused-upstream-fix"}, 1),
        ({"attention": "focused-upstream-fix"}, {"attention": "focused-stable", "focusing_factor": 4}, 1),
    ],
    ids=["fix-ours", "original-ours", "original-fix", "other-power"],
)
def test_two_formulations_are_compared(a: dict[str, Any], b: dict[str, Any], code: int) -> None:
    path = FLATTEN / "flatten-fixed-swin-model-LLSS.pth"
    result = verify(path, path, set_a=a, set_b=b, precisions=())
    assert result.exit_code == code
