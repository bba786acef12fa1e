"""Public reports on initialisation (J) and optimiser groups (L), one test each."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from torch import nn

from vitconv.inits import coverage
from vitconv.inits.audit.audit import audit_tensors
from vitconv.inits.base.architecture import Architecture
from vitconv.inits.base.deepnet import beta
from vitconv.inits.base.distribution import truncated_absolute, truncated_sigma, xavier_uniform
from vitconv.inits.base.draw import draw, sample
from vitconv.inits.base.fans import conv_fans, flat_fans, fused_fans, linear_fans
from vitconv.layout.groups import Grouped, grouped, listed, preset
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


def rows_of(arch: Architecture, name: str = "role", layer_decay: float | None = None) -> dict[str, Grouped]:
    """Return a row per canonical tensor; tokens are [1 1 d], as in every codebase."""
    tensors = [(n, (n,), (1, 1, *s) if n in ("embed.cls", "embed.dist") else s) for n, s in arch.shapes.items()]
    return {g.key: g for g in grouped(tensors, arch.depth, rule=preset(name), layer_decay=layer_decay)}


def test_l01_register_tokens_are_embeddings_without_decay(small: Callable[..., Architecture]) -> None:
    rows = rows_of(small(registers="4"), layer_decay=0.5)
    assert (rows["embed.reg"].layer, rows["embed.reg"].decays, rows["embed.reg"].scale) == (0, False, 0.125)
    assert (rows["blocks.1.attn.q.weight"].layer, rows["blocks.1.attn.q.weight"].decays) == (2, True)
    assert (rows["head.weight"].layer, rows["head.weight"].scale) == (3, 1.0)
    assert not any(r.decays for r in rows.values() if r.role.startswith("norm") or r.role.endswith("bias"))
    assert rows_of(small(registers="4"), "timm-early")["embed.reg"].decays
    assert not rows_of(small(registers="4"), "timm")["embed.reg"].decays


@pytest.mark.parametrize("names", [("ln_1",), ("layernorm_before",), ("norm1",)], ids=lambda n: n[0])
def test_l02_a_list_of_names_from_another_codebase_matches_nothing(names: tuple[str, ...]) -> None:
    keys = {
        "ln_1": "encoder.layers.encoder_layer_0.ln_1.weight",
        "layernorm_before": "vit.encoder.layer.0.layernorm_before.weight",
        "norm1": "blocks.0.norm1.weight",
    }
    own = keys.pop(names[0])

    def idle(*found: str) -> tuple[str, ...]:
        rows = [Grouped(key, "norm.weight", False, 1, 1.0) for key in found]
        return listed(rows, dict.fromkeys(found, (8,)), names).idle

    assert idle(own) == ()
    assert idle(*keys.values()) == names


@pytest.mark.parametrize(("rule", "decayed"), [("role", False), ("timm", False), ("deit", True)])
def test_l05_whether_the_distillation_token_decays_is_a_preset(rule: str, decayed: bool) -> None:
    from vitconv.initialise.network import Job, architecture

    arch, _ = architecture("deit_tiny_distilled_patch16_224", Job("timm"))
    assert rows_of(arch, rule)["embed.dist"].decays is decayed


def test_l05_the_timm_preset_is_timms_own_list() -> None:
    models = pytest.importorskip("timm.models.vision_transformer")
    own = models.VisionTransformer(img_size=32, patch_size=8, embed_dim=32, depth=1, num_heads=2).no_weight_decay()
    assert {"pos_embed", "cls_token", "dist_token", "reg_token"} == set(own)
