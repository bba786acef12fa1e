"""Public reports on initialisation (J) and optimiser groups (L), one test each."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from vitconv.inits import coverage
from vitconv.inits.audit.audit import audit_tensors
from vitconv.inits.base.architecture import Architecture
from vitconv.inits.base.deepnet import beta
from vitconv.inits.base.distribution import truncated_absolute, truncated_sigma, xavier_uniform
from vitconv.inits.base.draw import draw, sample
from vitconv.inits.base.fans import conv_fans, flat_fans, fused_fans, linear_fans
from vitconv.inits.base.groups import groups, idle_patterns, misplaced_moments
from vitconv.registry import INITS, load


@pytest.fixture
def small() -> Callable[..., Architecture]:
    from vitconv.initialise.network import Job, architecture
    from vitconv.inits.base.change import changed

    def make(**more: str) -> Architecture:
        changes = {k: more.pop(k) for k in ("norm", "layer_scale", "sub_norm") if k in more}
        size = {"depth": "2", "dim": "64", "heads": "4", "image": "32", "patch": "8", "classes": "10", **more}
        return changed(architecture("vit_tiny", Job("timm", size=size))[0], changes)[0]

    return make


def test_j01_cut_offs_at_the_values_two_cut_nothing_and_at_two_sigma_they_do() -> None:
    absolute, sigma = (sample(d, (100_000,), 0) for d in (truncated_absolute(0.02), truncated_sigma(0.02)))
    assert float(absolute.std()) == pytest.approx(0.02, rel=0.01)
    assert float(absolute.abs().max() / absolute.std()) > 4.0
    assert float(sigma.std()) == pytest.approx(0.0176, rel=0.01)
    assert float(sigma.abs().max() / sigma.std()) < 2.28
    assert truncated_absolute(0.02).text != truncated_sigma(0.02).text
    assert "true std 0.01759" in truncated_sigma(0.02).text


def test_j02_compensated_the_std_is_as_written() -> None:
    d = truncated_sigma(0.02, compensated=True)
    assert d.std == pytest.approx(0.02, rel=1e-6)
    assert float(sample(d, (100_000,), 0).std()) == pytest.approx(0.02, rel=0.01)


def test_j04_two_codebases_differ_in_tokens_positions_and_patches(small: Callable[..., Architecture]) -> None:
    arch = small()
    timm, hf = (load(INITS, name).declared(arch) for name in ("timm", "hf-deit"))
    differ = {name for name in timm if timm[name] != hf[name]}
    assert differ == {"embed.cls", "embed.pos", "embed.pos_cls", "embed.patch.weight", "embed.patch.bias"}


def test_j05_two_configurations_differ_in_four_named_fields(small: Callable[..., Architecture]) -> None:
    a = small().facts
    b = a.replaced({"norm_placement": "post", "norm_eps": 1e-5, "final_norm_eps": 1e-5, "kv_normalised": False})
    assert set(a.differences(b)) == {"norm_placement", "norm_eps", "final_norm_eps", "kv_normalised"}


def test_j07_a_gain_on_xavier_is_not_torchs_default_divided(small: Callable[..., Architecture]) -> None:
    arch = small(norm="deepnorm", depth="12", dim="192", heads="3")
    paper = load(INITS, "deepnorm").declared(arch)["blocks.0.attn.v.weight"]
    divided = 1 / math.sqrt(3 * 192) * beta(12)
    assert (paper.std, divided) == (pytest.approx(0.0231, abs=5e-5), pytest.approx(0.0133, abs=5e-5))
    assert "xavier normal x 0.3195" in paper.text


def test_j10_tensors_that_a_helper_left_unchanged_are_listed() -> None:
    def helper(module: nn.Module) -> None:
        for p in module.parameters():
            nn.init.normal_(p.detach().clone())

    assert {row.state for row in coverage(nn.Linear(4, 4), helper)} == {"left"}
    assert {row.state for row in coverage(nn.Linear(4, 4), lambda m: [nn.init.normal_(p) for p in m.parameters()])} == {
        "set"
    }


def test_j11_layer_scale_that_was_reset_to_one_is_found(small: Callable[..., Architecture]) -> None:
    arch = small(layer_scale="true")
    weights = draw(arch, load(INITS, "dinov2"), 0)
    assert audit_tensors(weights, arch.facts, "dinov2").found("layer-scale-one") is None
    for name in weights:
        if name.endswith((".ls1", ".ls2")):
            weights[name].fill_(1.0)
    audited = audit_tensors(weights, arch.facts, "dinov2")
    assert audited.found("layer-scale-one") is not None
    assert sum(f.id == "deviates" for f in audited.findings) == 4


@pytest.mark.parametrize(("depth", "value"), [("12", 0.1), ("24", 1e-5), ("36", 1e-6)])
def test_j13_layer_scale_by_depth(depth: str, value: float, small: Callable[..., Architecture]) -> None:
    found = load(INITS, "layer-scale").declared(small(depth=depth, layer_scale="true"))["blocks.1.ls2"]
    assert (found.centre, found.text) == (value, f"{value:g} for {depth} blocks")


def test_j14_the_fan_rule_is_said(small: Callable[..., Architecture]) -> None:
    shape = (32, 3, 4, 4)
    assert (flat_fans(shape).fan_in, flat_fans(shape).fan_out) == (48, 32)
    assert (conv_fans(shape).fan_in, conv_fans(shape).fan_out) == (48, 512)
    apart, fused = (xavier_uniform(rule((32, 32))) for rule in (linear_fans, fused_fans))
    assert apart.high / fused.high == pytest.approx(math.sqrt((32 + 96) / (32 + 32)))
    assert "q, k, v as one matrix" in fused.text
    assert "patch projection as a matrix" in load(INITS, "mae").declared(small())["embed.patch.weight"].text


def test_l01_register_tokens_are_embeddings_without_decay(small: Callable[..., Architecture]) -> None:
    rows = {r.name: r for r in groups(small(registers="4").shapes, layer_decay=0.5)}
    assert (rows["embed.reg"].layer_id, rows["embed.reg"].decayed, rows["embed.reg"].scale) == (0, False, 0.125)
    assert (rows["blocks.1.attn.q.weight"].layer_id, rows["blocks.1.attn.q.weight"].decayed) == (2, True)
    assert (rows["head.weight"].layer_id, rows["head.weight"].scale) == (3, 1.0)
    assert not any(r.decayed for r in rows.values() if r.role.startswith("norm") or r.role.endswith("bias"))
    assert {r.name: r for r in groups(small(registers="4").shapes, preset="timm-early")}["embed.reg"].decayed


@pytest.mark.parametrize("names", [("ln_1",), ("layernorm_before",), ("norm1",)], ids=lambda n: n[0])
def test_l02_a_list_of_names_from_another_codebase_matches_nothing(names: tuple[str, ...]) -> None:
    keys = {
        "ln_1": "encoder.layers.encoder_layer_0.ln_1.weight",
        "layernorm_before": "vit.encoder.layer.0.layernorm_before.weight",
        "norm1": "blocks.0.norm1.weight",
    }
    own = keys.pop(names[0])
    assert idle_patterns([own], names) == ()
    assert idle_patterns(keys.values(), names) == names


def test_l04_moments_of_other_parameters_are_caught() -> None:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    state = optimizer.state_dict()
    state["state"] = {0: state["state"][1], 1: state["state"][0]}
    other = torch.optim.Adam(model.parameters())
    other.load_state_dict(state)  # no error: this is the fault
    shapes = {i: tuple(p.shape) for i, p in enumerate(model.parameters())}
    moments: dict[int, Any] = {i: tuple(s["exp_avg"].shape) for i, s in state["state"].items()}
    assert misplaced_moments(shapes, moments) == (
        "parameter 0 has shape [4, 4], its moment [4]", "parameter 1 has shape [4], its moment [4, 4]"
    )  # fmt: skip
    assert misplaced_moments(shapes, shapes) == ()
    assert misplaced_moments(shapes, {0: (4, 4), 5: (4,)}) == (
        "parameter 1 has no moment",
        "moment 5 belongs to no parameter",
    )


@pytest.mark.parametrize(("preset", "decayed"), [("role", False), ("timm", False), ("deit", True)])
def test_l05_whether_the_distillation_token_decays_is_a_preset(preset: str, decayed: bool) -> None:
    from vitconv.initialise.network import Job, architecture

    arch, _ = architecture("deit_tiny_distilled_patch16_224", Job("timm"))
    assert {r.name: r.decayed for r in groups(arch.shapes, preset=preset)}["embed.dist"] is decayed


def test_l05_the_timm_preset_is_timms_own_list() -> None:
    models = pytest.importorskip("timm.models.vision_transformer")
    own = models.VisionTransformer(img_size=32, patch_size=8, embed_dim=32, depth=1, num_heads=2).no_weight_decay()
    assert {"pos_embed", "cls_token", "dist_token", "reg_token"} == set(own)
