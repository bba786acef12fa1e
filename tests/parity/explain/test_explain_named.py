"""Faults planted in timm's code, by a mutator that knows no catalogue, are named from the other side."""

from __future__ import annotations

import pytest
import torch

from vitconv.bench.clean import timm_pairs, variants
from vitconv.bench.detection import cell, mutations, networks, pairs, summary
from vitconv.bench.matrix import QUICK
from vitconv.bench.mutate import override
from vitconv.bench.mutate_numbers import numbers
from vitconv.bench.mutate_order import orders
from vitconv.parity.explain import explain_traces
from vitconv.parity.faults import FAULTS
from vitconv.parity.search import Budget

EXTRA = {
    "average": ("registers zero", "fc_norm ahead of the mean", "no qk norm", "mean of all tokens", "keys detached"),
    "gated": ("gate and value exchanged", "exact GELU"),
}

# Forms of norms, and what a backward pass written by hand can lack: the values may all be right.
BY_HAND = (
    "std norm, norm1", "unbiased norm, final", "kind-rmsnorm norm, norm2", "unbiased-std norm, all",
    "norm backward, mean, blocks", "norm backward, variance, final", "norm backward, statistics, norm2",
    "norm backward, gain-of-input, blocks", "norm backward, last-image, final", "norm backward, shift, all",
    "stem without gradients", "two blocks without gradients", "features without gradients", "a block without gradients",
    "attention without gradients", "MLP without gradients", "stream detached at attention",
    "stream detached at the MLP", "softmax elementwise", "slope none for GELU's", "slope one for GELU's",
    "slope gate for GELU's",
)  # fmt: skip


# Faults of the catalogue that no network here can have, that probe images, exact in half precision, do not show, or
# that are seen by watching a run, where here traces are all there is.
UNPLANTED = {
    "alpha-depth", "autocast-inside-bf16", "autocast-inside-fp16", "backward-activation-gelu", "batch-mixed",
    "dropout-head-alive", "eps-all-1e-6", "eps-embed-1e-6", "eps-final-1e-6", "eps-norm1-1e-6", "eps-norm2-1e-6",
    "eps-qk-1e-6", "half-inside-bf16", "half-inside-fp16", "images-bf16", "images-fp16", "norm-after-pooling",
    "placement-deepnorm", "pooler-missing", "pooler-tanh-missing", "pooling-none", "rope-ahead-of-norms",
    "rope-in-bfloat16", "rope-in-float32", "rope-places-separate", "trunk-norm-missing",
}  # fmt: skip


@pytest.mark.parametrize("name", [n for n in QUICK if n != "no key bias"])
def test_a_fault_in_timm_is_named(name: str, bench_of, mutation) -> None:
    found = cell(bench_of("token"), [mutation(name)], "fp64")
    assert found.effect and found.seen and found.named and not found.accused
    if not mutation(name).random:
        assert found.after < 1e-10 < found.before


@pytest.mark.parametrize(("network", "name"), [(n, m) for n, names in EXTRA.items() for m in names])
def test_a_fault_in_other_networks_is_named(network: str, name: str, bench_of, mutation) -> None:
    found = cell(bench_of(network), [mutation(name)], "fp64")
    assert found.named and not found.accused


@pytest.mark.slow
@pytest.mark.parametrize("name", BY_HAND)
def test_norms_and_derivatives_by_hand_are_named(name: str, bench_of, mutation) -> None:
    found = cell(bench_of("token"), [mutation(name)], "fp64")
    assert found.seen and found.named and not found.accused
    assert found.after < 1e-10 < found.before


@pytest.mark.slow
@pytest.mark.parametrize("name", [m.name for m in numbers()])
def test_a_number_is_solved_for(name: str, bench_of, mutation) -> None:
    found = cell(bench_of("token"), [mutation(name)], "fp64")
    assert found.seen and found.named and not found.accused
    assert found.after < 1e-10 < found.before


def test_a_number_is_told_as_what_it_is(bench_of, mutation) -> None:
    bench = bench_of("token")
    both = [mutation("norm times the root of the width, final"), mutation("tanh GELU")]
    cause = bench.explain(bench.spoiled(*both), "fp64")
    assert "the output is multiplied by 5.65685425, the square root of 32" in " ".join(cause.titles)
    assert cause.found[0] == "activation-gelu-tanh"
    cause = bench.explain(bench.spoiled(mutation("eps 3e-4 in blocks")), "fp64")
    assert cause.titles == ("the norms in the blocks: eps is 0.0003",)


@pytest.mark.parametrize("name", [m.name for m in orders()])
def test_blocks_that_run_in_another_order_are_named(name: str, bench_of, mutation) -> None:
    found = cell(bench_of("token"), [mutation(name)], "fp64")
    assert found.seen and found.named and not found.accused
    assert found.after < 1e-10 < found.before


def test_a_fault_among_blocks_in_another_order_is_named_with_its_block(bench_of, mutation) -> None:
    bench = bench_of("token")
    both = [mutation("blocks backwards"), mutation("tanh GELU in block 2")]
    cause = bench.explain(bench.spoiled(*both), "fp64")
    assert cause.found == ("blocks-reversed", "activation-gelu-tanh@2")
    assert cause.after < 1e-10 < cause.before


def test_blocks_run_image_by_image_are_in_order(bench_of) -> None:
    bench = bench_of("token")
    net = bench.spoiled()
    whole = type(net).forward_features

    def one_by_one(self, x, **_):
        return torch.cat([whole(self, image[None]) for image in x])

    override(net, forward_features=one_by_one)
    assert all("blocks" not in t.facts for t in bench.traces(net, "fp64"))


TURNED = {
    "eva": ("rope: other pairs", "rope: queries not turned", "rope: from the centres"),
    "dinov3": ("rope: other partners", "rope: over the min side", "rope: prefix counted"),
    "rope": ("rope: axes exchanged", "rope: base 1000", "rope: values turned"),
    "beit": ("biases transposed", "biases of keys to queries", "biases class rows exchanged"),
}


@pytest.mark.parametrize(("network", "name"), [(n, m) for n, names in TURNED.items() for m in names])
def test_positions_inside_attention_are_named(network: str, name: str, bench_of, mutation) -> None:
    found = cell(bench_of(network), [mutation(name)], "fp64")
    assert found.effect and found.named and not found.accused
    assert found.after < 1e-10 < found.before


def test_rounded_turns_are_told_from_wrong_ones(bench_of, mutation, monkeypatch) -> None:
    from vitconv.parity import explain

    bench = bench_of("eva")
    net = bench.spoiled(mutation("rope: turns rounded"))
    assert bench.explain(net, "fp64").found == ("rope-rounded",)
    monkeypatch.setattr(explain, "ROUNDED", {})
    assert bench.explain(net, "fp64").found == ()


@pytest.mark.slow
@pytest.mark.parametrize("network", TURNED)
def test_every_fault_of_positions_inside_attention_is_named(network: str, bench_of) -> None:
    bench = bench_of(network)
    fitting = [m for m in mutations() if m.fits(bench.net)]
    cells = [cell(bench, [m], p) for p in ("fp64", "fp32") for m in fitting if p == "fp64" or not m.exact]
    n = summary(cells)
    assert n["missed"] == n["accused"] == 0
    assert n["named"] == n["real"] >= len(fitting)


def test_a_missing_key_bias_is_no_fault(bench_of, mutation) -> None:
    found = cell(bench_of("token"), [mutation("no key bias")], "fp64")
    assert not found.effect and not found.seen and not found.accused


@pytest.mark.parametrize(
    "name", ["eps 1e-5 at the end", "tanh GELU", "scale too large by 1 %", "derivative of tanh GELU"]
)
def test_small_faults_are_named_in_float32(name: str, bench_of, mutation) -> None:
    found = cell(bench_of("token"), [mutation(name)], "fp32")
    assert found.seen and found.named and not found.accused


@pytest.mark.parametrize(
    "names",
    [
        ("eps 1e-5 in blocks", "tanh GELU"),
        ("rows kqv", "grid transposed"),
        ("patch kernel transposed", "tanh GELU in block 2"),
        ("tanh GELU", "position gradient doubled"),
    ],
    ids=" + ".join,
)
def test_two_faults_are_named_together(names: tuple[str, str], bench_of, mutation) -> None:
    found = cell(bench_of("token"), [mutation(n) for n in names], "fp64")
    assert found.named and not found.accused and found.after < 1e-10


def test_two_faults_of_one_place_are_named_together(bench_of, mutation) -> None:
    bench = bench_of("token")
    net = bench.spoiled(mutation("rows kqv"))
    for block in net.blocks:
        block.attn.fused_attn, block.attn.scale = False, block.attn.scale * 2**0.5
    assert frozenset(("qkv-order-kqv", "scale-sqrt2")) in bench.explain(net, "fp64").names


def test_what_is_in_no_catalogue_accuses_nobody(bench_of) -> None:
    bench = bench_of("token")
    net = bench.spoiled()
    with torch.no_grad():
        net.blocks[1].mlp.fc1.weight[3, 4] += 0.1
    cause = explain_traces(
        bench.config,
        bench.weights,
        list(bench.images.values()),
        bench.traces(net, "fp64"),
        right=bench.clean("fp64"),
        budget=Budget(pairs=40),
    )
    assert cause.found == () and not cause.unsound
    assert "blocks.1.mlp" in cause.reason
    assert "activation-gelu-tanh" in cause.excluded and "qkv-order-kqv" not in cause.excluded


def test_a_fault_that_the_catalogue_lacks_is_not_given_another_name(bench_of, mutation) -> None:
    bench = bench_of("token")
    without = [n for n in FAULTS if not n.startswith("activation-")]
    cause = explain_traces(
        bench.config,
        bench.weights,
        list(bench.images.values()),
        bench.traces(bench.spoiled(mutation("tanh GELU")), "fp64"),
        right=bench.clean("fp64"),
        budget=Budget(pairs=40),
        catalogue=without,
    )
    assert cause.found == ()


def test_the_reference_must_be_the_side_that_is_right(bench_of, mutation) -> None:
    bench = bench_of("token")
    wrong = bench.traces(bench.spoiled(mutation("causal")), "fp64")
    cause = explain_traces(bench.config, bench.weights, list(bench.images.values()), wrong, right=wrong)
    assert cause.unsound and cause.found == ()


def test_rounding_asks_for_no_second_fault(bench_of, mutation) -> None:
    # Attention that mixes heads rounds more than the right one; a second fault could take the rest away, by chance.
    found = cell(bench_of("token"), [mutation("proj transposed")], "fp32")
    assert found.answer[0] == ("out-transposed",)
    assert not found.accused


def test_a_fault_that_another_one_hides_is_not_asked_for(bench_of, mutation) -> None:
    # Under a causal mask a class token that stands first sees itself alone: nothing reaches the stem.
    found = cell(bench_of("token"), [mutation("stem frozen"), mutation("causal")], "fp64")
    assert found.named and not found.accused
    # Two that both show are both asked for.
    found = cell(bench_of("token"), [mutation("stem frozen"), mutation("tanh GELU")], "fp64")
    assert found.named
    assert {n.partition("@")[0] for n in found.answer[0]} == {"backward-patch-frozen", "activation-gelu-tanh"}


def test_a_small_fault_behind_a_large_one_is_found(bench_of, mutation) -> None:
    found = cell(bench_of("token"), [mutation("rows read per head"), mutation("scale too large by 1 %")], "fp64")
    assert found.named


def test_a_changed_file_is_told_from_changed_code(bench_of, mutation) -> None:
    bench = bench_of("token")
    net = bench.spoiled()
    with torch.no_grad():
        for block in net.blocks:
            for p in (block.attn.qkv.weight, block.attn.qkv.bias):
                q, k, v = p.clone().chunk(3)
                p.copy_(torch.cat([k, q, v]))
    args = (bench.config, bench.weights, list(bench.images.values()), bench.traces(net, "fp64"))
    cause = explain_traces(*args, right=bench.clean("fp64"), stored=True)
    assert cause.found == ("qkv-order-kqv",)
    # Taken for code its gradients would stand in the wrong places.
    assert explain_traces(*args, right=bench.clean("fp64"), budget=Budget(pairs=40)).found == ()


@pytest.mark.parametrize("precision", ["fp64", pytest.param("fp32", marks=pytest.mark.slow)])
def test_equal_functions_accuse_nobody(precision: str, bench_of) -> None:
    found = list(timm_pairs(bench_of("token"), precision))
    assert len(found) == len(variants()) + 1
    assert [c for c in found if c.alarm or c.accused] == []


def test_the_mutator_knows_no_catalogue_and_speaks_of_its_names() -> None:
    from vitconv.bench import (
        mutate,
        mutate_block,
        mutate_kinds,
        mutate_more,
        mutate_norms,
        mutate_numbers,
        mutate_order,
        mutate_shapes,
        mutate_slopes,
    )

    of_norms = (mutate_norms, mutate_numbers, mutate_slopes)
    for module in (mutate, mutate_block, mutate_kinds, mutate_more, mutate_order, mutate_shapes, *of_norms):
        assert not any(getattr(x, "__module__", "").startswith("vitconv.parity") for x in vars(module).values())
    planted = {t for m in mutations() for t in m.truth} - {""}
    assert planted <= {*FAULTS}
    assert len(planted) >= 280
    # What is not planted there shows in half precision only, or needs a network that is none of these.
    left = {n for n in {*FAULTS} - planted if FAULTS[n].visible != "half" and "plain" in FAULTS[n].families}
    assert left <= UNPLANTED
    plain = {"token", "average", "gated", "distilled", "res-post", "deepnorm"}
    assert plain | {"eva", "dinov3", "rope", "beit"} == {*networks()}


@pytest.mark.slow
def test_the_whole_of_one_network_in_float64(bench_of) -> None:
    bench = bench_of("gated")
    cells = [cell(bench, [m], "fp64") for m in mutations() if m.fits(bench.net)]
    cells += [cell(bench, pair, "fp64") for pair in pairs(bench, 6)]
    n = summary(cells)
    assert n["missed"] == n["accused"] == 0
    assert n["named"] >= 0.95 * n["real"]


@pytest.mark.slow
def test_the_quick_matrix_meets_its_targets() -> None:
    from vitconv.bench.matrix import measure, plan, report

    matrix = measure(plan(quick=True))
    assert matrix.good
    assert len(matrix.singles) == len(QUICK)
    assert [s.key for s in report(matrix).sections] == ["singles", "pairs", "half", "clean", "open"]
