"""Each check of facts, weights and one pass fires on a planted fault and is silent on its healthy twin."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from vitconv.checks.base.context import Context
from vitconv.checks.base.passes import median_variance, rms, token_cosine
from vitconv.hosts.base.host import Spec
from vitconv.parity.bridge import state_of


def planted(context: Context, change: Callable[[dict[str, torch.Tensor]], Any]) -> Context:
    """Return the context with its canonical weights changed, in the network too."""
    weights = {n: t.clone() for n, t in context.canonical.items()}
    change(weights)
    assert context.bridge is not None
    context.bridge.write(weights, state_of(context.network.module))
    return dataclasses.replace(context, weights=weights)


def scaled(name: str, factor: float) -> Callable[[dict[str, torch.Tensor]], Any]:
    return lambda weights: weights[name].mul_(factor)


def nan_in(name: str) -> Callable[[dict[str, torch.Tensor]], Any]:
    return lambda weights: weights[name].view(-1)[3:4].fill_(math.nan)


def queries_times(factor: float) -> Callable[[dict[str, torch.Tensor]], Any]:
    return lambda weights: [t.mul_(factor) for n, t in weights.items() if ".attn.q.weight" in n]


def no_input(weights: dict[str, torch.Tensor]) -> None:
    weights["embed.patch.weight"].zero_()


STATIC = (
    "facts", "init-audit", "deepnorm-bound", "attention", "fp16-gradients", "gradient-profile", "loss-at-init",
    "norm-eps", "signals", "fp16-headroom",
)  # fmt: skip


@pytest.mark.parametrize("name", STATIC)
@pytest.mark.parametrize(
    "sets",
    [(), ("norm=deepnorm", "classes=100")],
    ids=["pre-timm", "deepnorm"],
)
def test_a_healthy_network_gives_no_warning(
    name: str, sets: tuple[str, ...], network: Any, check: Any, faults: Any
) -> None:
    found = check(name, network(*sets, scheme="deepnorm" if sets else "timm"))
    assert [f.text for f in faults(found)] == []


@pytest.mark.parametrize(
    ("name", "plant", "level", "says"),
    [
        ("init-audit", nan_in("blocks.1.mlp.up.weight"), "error", "NaN"),
        ("init-audit", scaled("blocks.2.attn.v.weight", 0.0), "warn", "zero"),
        ("loss-at-init", scaled("head.weight", 60.0), "error", "ln 10"),
        ("loss-at-init", no_input, "error", "same logits"),
        ("signals", nan_in("blocks.2.mlp.up.weight"), "error", "blocks.2.mlp"),
        ("signals", scaled("blocks.1.mlp.down.weight", 3e6), "error", "blocks.1 reaches"),
        ("signals", scaled("blocks.2.mlp.down.weight", 300.0), "warn", "blocks.2"),
        ("gradient-profile", scaled("blocks.1.attn.v.weight", 1e-7), "error", "rho"),
        ("attention", queries_times(900.0), "warn", "|logit|"),
        ("attention", queries_times(3e5), "error", "|logit|"),
        ("norm-eps", scaled("embed.cls", 0.0), "ok", "eps"),
        ("fp16-headroom", scaled("blocks.1.mlp.down.weight", 1e7), "error", "blocks.1.mlp.down"),
        ("fp16-headroom", scaled("blocks.3.mlp.up.weight", 3e4), "warn", "blocks.3.mlp"),
    ],
)  # fmt: skip
def test_a_planted_fault_is_found(name: str, plant: Any, level: str, says: str, network: Any, check: Any) -> None:
    found = check(name, planted(network(), plant))
    assert any(f.level == level and says in f.text for f in found.findings), [f.text for f in found.findings]


def facts(context: Context, **told: Any) -> Context:
    return dataclasses.replace(context, facts=context.facts.replaced(told))


@pytest.mark.parametrize(
    ("told", "level", "says"),
    [
        ({"kv_normalised": False}, "error", "un-normalised"),
        ({"norm_eps": 0.0}, "warn", "divides by zero"),
        ({"norm_eps": 1e-5}, "info", "1e-05 in the blocks"),
        ({"norm_placement": "deepnorm", "residual_alpha": 1.3}, "error", "(2N)^(1/4) = 1.6818"),
    ],
)
def test_facts_off_the_convention(told: dict[str, Any], level: str, says: str, network: Any, check: Any) -> None:
    found = check("facts", facts(network(), **told))
    assert any(f.level == level and says in f.text for f in found.findings)


@pytest.mark.parametrize(("dtype", "level"), [(torch.float16, "error"), (torch.bfloat16, "warn")])
def test_parameters_in_half_precision(dtype: torch.dtype, level: str, network: Any, check: Any, faults: Any) -> None:
    context = network()
    halved = dataclasses.replace(context, weights={n: t.to(dtype) for n, t in context.canonical.items()})
    assert [f.level for f in faults(check("facts", halved))] == [level]


def test_all_four_facts_of_the_first_report_are_listed(check: Any, network: Any) -> None:
    context = facts(network(), kv_normalised=False, norm_eps=1e-5, norm_placement="pre")
    text = " ".join(f.text for f in check("facts", context).findings)
    assert all(word in text for word in ("kv_normalised=False", "norm_eps=1e-05", "norm_placement=pre", "activation"))


@pytest.mark.parametrize(
    ("depth", "level"),
    [("6", "ok"), ("24", "error")],
)
def test_post_norm_dies_by_depth_and_only_the_profile_sees_it(depth: str, level: str, network: Any, check: Any) -> None:
    context = network(f"depth={depth}", "norm=post", scheme="timm-moco")
    profile = check("gradient-profile", context)
    assert profile.findings[0].level == level
    assert [f for f in check("signals", context).findings if f.level != "ok"] == []


@pytest.mark.parametrize("sets", [("norm=deepnorm",), ()], ids=["deepnorm", "pre"])
def test_depth_24_is_alive_with_deepnorm_and_with_pre_norm(sets: tuple[str, ...], network: Any, check: Any) -> None:
    context = network("depth=24", *sets, scheme="deepnorm" if sets else "timm-moco")
    assert check("gradient-profile", context).level == "ok"


@pytest.mark.parametrize(("scheme", "bound"), [("timm-moco", "warn"), ("deepnorm", "ok")])
def test_the_bound_of_deepnorm(scheme: str, bound: str, network: Any, check: Any) -> None:
    found = check("deepnorm-bound", network("norm=deepnorm", "depth=12", scheme=scheme))
    assert found.findings[0].level == bound


def test_a_scheme_that_claims_deepnorm_and_is_not_it(network: Any, check: Any) -> None:
    context = network("norm=deepnorm", "depth=12", scheme="deepnorm")

    def twice(weights: dict[str, torch.Tensor]) -> None:
        for name, t in weights.items():
            if name.endswith(("attn.v.weight", "attn.out.weight", "mlp.up.weight", "mlp.down.weight")):
                t.mul_(2.0)

    assert check("deepnorm-bound", planted(context, twice)).findings[0].level == "error"


def test_queries_that_got_beta_are_found(network: Any, check: Any) -> None:
    context = network("norm=deepnorm", "depth=12", scheme="xformers-vit")
    assert [f.level for f in check("deepnorm-bound", context).findings] == ["ok", "warn"]


def test_an_eps_as_large_as_the_variance(network: Any, check: Any) -> None:
    told = Spec(facts=network().facts)
    large = network("norm_eps=0.01")
    assert told.facts.norm_eps == 1e-6
    assert check("norm-eps", large).level == "warn"


def test_an_eps_that_is_zero_in_float16(network: Any, check: Any) -> None:
    context = network("norm_eps=1e-12")
    half = dataclasses.replace(context, weights={n: t.half() for n, t in context.canonical.items()})
    assert check("norm-eps", half).level == "error"
    assert check("norm-eps", context).level == "info"


def test_token_cosine() -> None:
    same = torch.ones(2, 5, 3)
    assert token_cosine(same) == pytest.approx(1.0)
    assert token_cosine(torch.eye(4)[None]) == pytest.approx(0.0)


def test_gradients_that_vanish_in_float16(network: Any, check: Any, faults: Any) -> None:
    context = network()
    seen = context.signals
    tiny = {n: g * 1e-9 for n, g in seen.tap_grads.items()}
    context.__dict__["signals"] = dataclasses.replace(seen, tap_grads=tiny)
    assert [f.level for f in faults(check("fp16-gradients", context))] == ["error"]


def test_a_network_whose_branches_are_gated_is_not_dead(network: Any, check: Any) -> None:
    context = network("norm=res-post", scheme="small-gain")
    found = check("gradient-profile", context)
    assert found.level == "info"
    assert "gated" in found.findings[0].text
    start = check("loss-at-init", context)
    assert start.level == "info"
    assert "no patch yet" in start.findings[-1].text


@pytest.mark.parametrize("depth", ["2", "12"])
@pytest.mark.parametrize(
    ("kv", "scheme", "level"),
    [("true", "timm", "ok"), ("false", "timm", "error"), ("true", "timm-moco", "ok"), ("false", "timm-moco", "error")],
    ids=["timm", "timm-raw", "xavier", "xavier-raw"],
)
def test_keys_and_values_that_read_the_stream_itself(
    kv: str, scheme: str, level: str, depth: str, network: Any, check: Any
) -> None:
    context = network(f"kv_normalised={kv}", f"depth={depth}", scheme=scheme)
    blind = dataclasses.replace(context, facts=context.facts.replaced({"kv_normalised": None}))
    found = check("stream-growth", blind)
    assert found.findings[0].level == level, found.findings[0].text
    assert abs(found.findings[0].figures["power_attn"] - (level == "error")) < 0.25
    assert found.findings[1].level == "ok"


@pytest.mark.parametrize(("release", "level"), [("0.0.9", "error"), ("0.0.11", "ok")])
def test_the_releases_of_xformers_are_told_apart_without_their_facts(release: str, level: str, check: Any) -> None:
    from vitconv.bench.experiments.cell import context
    from vitconv.bench.experiments.studies import FACTORS, report

    cell = dataclasses.replace(
        report()[0], depth=4, width=48, network=dataclasses.replace(FACTORS["nothing"], release=release)
    )
    built = context(cell)
    assert built.facts.kv_normalised is (level == "ok")
    found = check("stream-growth", dataclasses.replace(built, facts=built.facts.replaced({"kv_normalised": None})))
    assert found.level == level


def test_a_stream_that_one_step_blows_up(network: Any, check: Any) -> None:
    context = network("depth=12")
    assert check("stream-growth", context).level == "ok"
    fast = dataclasses.replace(context, plan=dataclasses.replace(context.plan, lr=0.1))
    assert [f.level for f in check("stream-growth", fast).findings] == ["ok", "ok", "warn"]


@pytest.mark.parametrize(
    "sets", [("norm=post",), ("norm=deepnorm",), ("norm=res-post",)], ids=["post", "deepnorm", "res-post"]
)
def test_growth_of_other_placements(sets: tuple[str, ...], network: Any, check: Any) -> None:
    found = check("stream-growth", network(*sets, scheme="timm-moco"))
    assert found.level == "ok"
    assert bool(found.skipped) == ("res-post" not in sets[0])


@pytest.mark.parametrize(
    ("scheme", "rule", "level"),
    [("mup", 1.0, "ok"), ("mup", 0.0, "error"), ("timm", 1.0, "info")],
    ids=["mup", "mup-with-one-lr", "timm"],
)
def test_activations_over_widths(scheme: str, rule: float, level: str, network: Any, check: Any) -> None:
    context = network("depth=2", "dim=64", "heads=1", scheme=scheme)
    assert check("width-scaling", context, rule=rule).level == level


def test_weights_moved_by_one_step_come_back_bit_for_bit(network: Any, check: Any) -> None:
    context = network("depth=3")
    module = context.network.module
    before = {n: (p, p.data_ptr(), p.detach().clone()) for n, p in module.named_parameters()}
    assert check("stream-growth", context).findings[-1].figures["growth"] > 1.0 + 1e-3
    for name, p in module.named_parameters():
        was, place, value = before[name]
        assert p is was
        assert p.data_ptr() == place
        assert torch.equal(p, value), name


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30], ids=["squares-vanish", "usual", "squares-overflow"])
def test_rms_and_variance_at_every_size(scale: float) -> None:
    x = torch.randn(3, 7, 64, generator=torch.Generator().manual_seed(0)) * scale
    assert rms(x) == pytest.approx(float(x.double().square().mean().sqrt()), rel=1e-5)
    if scale == 1.0:
        assert median_variance(x + 5.0) == pytest.approx(float(x.var(-1, correction=0).median()), rel=1e-4)
