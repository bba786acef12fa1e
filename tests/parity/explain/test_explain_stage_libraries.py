"""Faults planted in networks of stages of three libraries, by a mutator that knows no catalogue, are named."""

from __future__ import annotations

import pytest
import torch

from vitconv.bench.clean import stage_library_pairs
from vitconv.bench.detection import bench_of as make_bench
from vitconv.bench.detection import cell, mutations, summary
from vitconv.bench.stage_networks import stage_networks
from vitconv.parity.explain import explain_traces
from vitconv.parity.faults import FAULTS

QUICK = {
    "timm swin": (
        "index upside down",
        "merging above and below",
        "merging channel by channel",
        "shift in the first block",
    ),
    "timm swin v2": ("scale clamped-late", "coordinates not times 8", "coordinates in float64", "k-bias-is-q-bias"),
    "torchvision swin": ("shift unmasked inside", "no shift", "eps of mergings 1e-6", "index all zeros"),
    "torchvision swin v2": ("index flipped of an MLP", "coordinates of windows of 12", "cpb-16-missing"),
    "transformers swin": ("merging by rows", "shift unmasked", "RMS norms in stages", "index transposed"),
    "transformers swin v2": ("coordinates no log", "scale as-it-is", "coordinates exchanged"),
    "timm pvt v2": ("pyramid eps 1e-12, patches", "pyramid eps 1e-3, ends"),
    "transformers pvt": ("reduction without bias", "pyramid eps 1e-3, everywhere"),
    "transformers pvt v2": ("reduced keys without norm", "pyramid eps 1e-12, reduced"),
}


@pytest.mark.slow
@pytest.mark.parametrize(("network", "name"), [(n, m) for n, names in QUICK.items() for m in names])
def test_a_fault_in_a_library_is_named(network: str, name: str, bench_of, mutation) -> None:
    bench = bench_of(network)
    found = cell(bench, [mutation(name)], "fp64")
    assert found.effect and found.seen and found.named and not found.accused, found


@pytest.mark.slow
def test_what_is_not_in_the_catalogue_is_not_taken_for_rounding(bench_of) -> None:
    bench = bench_of("timm swin v2")
    net = bench.spoiled()
    with torch.no_grad():
        # Four hundred times what float32 rounds.
        for m in net.modules():
            if hasattr(m, "relative_coords_table"):
                m.relative_coords_table *= 1 + 5e-5
    assert bench.explain(net, "fp64").found == ()


@pytest.mark.slow
def test_without_the_rounding_of_coordinates_another_order_is_not_explained(bench_of, mutation, monkeypatch) -> None:
    from vitconv.parity import explain

    bench = bench_of("timm swin v2")
    net = bench.spoiled(mutation("coordinates not times 8"))
    found = bench.explain(net, "fp64")
    assert frozenset({"coordinates-not-times-8"}) in found.names
    assert "rounding of coordinates" in found.reason
    monkeypatch.setattr(explain, "ROUNDED", {})
    assert bench.explain(net, "fp64").found == ()


@pytest.mark.slow
def test_a_fault_that_the_catalogue_lacks_is_not_given_another_name(bench_of, mutation) -> None:
    bench = bench_of("timm swin v2")
    traces = bench.traces(bench.spoiled(mutation("coordinates no log")), "fp64")
    without = [n for n in FAULTS if n != "coordinates-linear"]
    images = list(bench.images.values())
    cause = explain_traces(bench.config, bench.weights, images, traces, right=bench.clean("fp64"), catalogue=without)
    assert cause.found == ()


@pytest.mark.slow
@pytest.mark.parametrize("network", [n for n in stage_networks() if n != "timm swin v2"])
def test_every_fault_of_a_library_is_named(network: str) -> None:
    torch.set_num_threads(1)
    bench = make_bench(network, "like")
    n = summary([cell(bench, [m], "fp64") for m in mutations() if m.fits(bench.net)])
    assert n["missed"] == n["accused"] == 0
    assert n["named"] == n["real"] >= 9


def test_libraries_accuse_each_other_of_nothing() -> None:
    found = [*stage_library_pairs(0)]
    assert len(found) == 12
    assert [c for c in found if c.alarm or c.accused] == []
