"""cast, and the pass that counts what it does before the first byte is written."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from vitconv.errors import Refused, UsageError
from vitconv.layout.edits import check_before_writing
from vitconv.layout.edits.check import findings, summary
from vitconv.layout.edits.compute import evaluate
from vitconv.layout.network import Cell
from vitconv.layout.recipe import dense_view

TORCH = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


@pytest.mark.parametrize("target", TORCH)
@pytest.mark.parametrize("source", TORCH)
def test_bytes_equal_torch(random_network: Callable[..., Any], source: str, target: str) -> None:
    net = random_network(dtype=source)
    out = net.edited(f"cast:{target}")
    assert {c.dtype for c in out.network.cells.values()} == {target}
    for name, cell in out.network.cells.items():
        theirs = torch.from_numpy(np.array(net[name])).to(TORCH[source]).to(TORCH[target])
        if source == target:
            assert cell == net.network.cells[name]
        else:
            ours = evaluate(out.network, cell.view.tensor, out.read)
            assert bytes(ours) == theirs.view(torch.uint8).numpy().tobytes()
    wider = {"F64": TORCH, "F32": ("F32", "F16", "BF16"), "F16": ("F16",), "BF16": ("BF16",)}[target]
    assert out.network.log[-1].exact is (source in wider)


def test_a_mixed_file_keeps_its_dtypes_unless_told(
    random_network: Callable[..., Any], held: Callable[..., Any]
) -> None:
    # Recipes H07 and H26: an fp16 file with one fp32 norm; edits of other tensors change no dtype.
    mixed = held(random_network().values, "F16", dtypes={"norm.weight": "F32", "norm.bias": "F32"})
    for edits in (["fold-cls-position"], ["change-channels:1"], ["drop:head*"], ["change-classes:classes=3,how=zeros"]):
        out = mixed.edited(*edits)
        assert all(c.dtype == mixed.network.cells[n].dtype for n, c in out.network.cells.items())
    told = mixed.edited("cast:dtype=BF16")
    n = len(mixed.network.cells)
    assert f"{n} of {n} tensors cast to BF16: {n - 2} F16, 2 F32 becomes {n} BF16" in told.last
    some = mixed.edited("cast:dtype=F32,only=blocks.{i}.norm*")
    assert {k for k, c in some.network.cells.items() if c.dtype == "F32"} == {
        "norm.weight",
        "norm.bias",
        *(f"blocks.{i}.norm{j}.{kind}" for i in (0, 1) for j in (1, 2) for kind in ("weight", "bias")),
    }


def wild(held: Callable[..., Any]) -> Any:
    """1000 values between 1e-8 and 1e6, and a harmless tensor."""
    x = 10.0 ** np.random.default_rng(0).uniform(-8, 6, (5, 200))
    return held({"head.weight": x, "head.bias": np.ones(5)})


def test_overflow_is_refused_before_writing(held: Callable[..., Any]) -> None:
    # Recipe H08.
    net = wild(held)
    half = torch.from_numpy(np.array(net["head.weight"])).half()
    over, under = int(half.isinf().sum()), int((half == 0).sum())
    assert min(over, under) > 0
    out = net.edited("cast:F16")
    with pytest.raises(Refused) as caught:
        check_before_writing(out.network, out.read)
    assert f"{over} of 1000 elements are past F16's largest value, 65504, in head.weight (cast F32 -> F16)" in str(
        caught.value
    )
    assert "overflow=inf or overflow=clamp" in str(caught.value)
    counted = {f.name: f.report for f in findings(out.network, out.read)}
    assert (counted["head.weight"].overflow, counted["head.weight"].underflow) == (over, under)
    assert (counted["head.bias"].overflow, counted["head.bias"].underflow) == (0, 0)
    # Whoever skips the pass is stopped when the tensor is computed.
    with pytest.raises(Refused, match=f"{over} of 1000 elements of head.weight"):
        evaluate(out.network, out.network.cells["head.weight"].view.tensor, out.read)


def test_overflow_as_told(held: Callable[..., Any]) -> None:
    net = wild(held)
    half = torch.from_numpy(np.array(net["head.weight"])).half().float().numpy()
    out = net.edited("cast:F16,overflow=inf")
    found = check_before_writing(out.network, out.read)
    assert np.array_equal(out["head.weight"], half)
    clamped = net.edited("cast:F16,overflow=clamp")
    check_before_writing(clamped.network, clamped.read)
    assert np.array_equal(clamped["head.weight"], np.minimum(half, 65504))
    assert "overflow: clamp" in clamped.last
    lines = summary(found)
    assert len(lines) == 1
    assert lines[0].startswith("cast F32 -> F16: of 1005 elements")
    assert lines[0].endswith("; in head.weight")


def test_clamp_leaves_infinities_and_nan(held: Callable[..., Any]) -> None:
    net = held({"head.bias": np.array([np.inf, -np.inf, np.nan, 1e6, -1e6])})
    out = net.edited("cast:F16,overflow=clamp")["head.bias"]
    assert np.array_equal(out, [np.inf, -np.inf, np.nan, 65504, -65504], equal_nan=True)


def test_infinities_that_were_there_are_no_overflow(held: Callable[..., Any]) -> None:
    out = held({"head.bias": np.array([np.inf, np.nan, 1.0])}).edited("cast:F16")
    (found,) = check_before_writing(out.network, out.read)
    assert (found.report.overflow, found.report.nan) == (0, 1)


def test_brain_floats_hold_the_range(held: Callable[..., Any]) -> None:
    out = wild(held).edited("cast:BF16")
    total = check_before_writing(out.network, out.read)
    assert all((f.report.overflow, f.report.underflow) == (0, 0) for f in total)
    assert 3.7e-3 < max(f.report.max_relative_error for f in total) <= 2.0**-8


def test_a_fold_in_half_precision_is_counted_too(held: Callable[..., Any]) -> None:
    net = held({"blocks.0.attn.out.weight": np.full((2, 2), 600.0), "blocks.0.ls1": np.full(2, 300.0)}, "F16")
    out = net.edited("fold-layer-scale")
    with pytest.raises(
        Refused, match=r"4 of 4 elements are past F16.*blocks.0.attn.out.weight \(LayerScale folded in\)"
    ):
        check_before_writing(out.network, out.read)


def test_an_overflow_inside_is_reported_though_it_is_not_written(held: Callable[..., Any]) -> None:
    net = held({"head.bias": np.array([1e6, 1.0])})
    out = net.edited("cast:F16", "cast:F32")
    with pytest.raises(Refused, match="1 of 2 elements"):
        check_before_writing(out.network, out.read)
    assert np.array_equal(net.edited("cast:F16,overflow=clamp", "cast:F32")["head.bias"], [65504, 1])
    # The pass goes on behind it, so that all is reported at once.
    twice = net.edited("cast:F16", "cast:BF16")
    assert [f.report.overflow for f in findings(twice.network, twice.read)] == [1, 0]


def test_nothing_is_read_where_nothing_is_rounded(random_network: Callable[..., Any]) -> None:
    net = random_network(block=("attn.out", "mlp.down", "ls1", "ls2"))
    out = net.edited("fold-layer-scale", "cast:F64", "fill:embed.dist=0")

    def forbidden(cell: Cell) -> bytes:
        raise AssertionError(cell.name)

    assert findings(out.network, forbidden) == ()


def test_progress_and_memory(random_network: Callable[..., Any]) -> None:
    out = random_network().edited("cast:BF16")
    told: list[tuple[int, int]] = []
    findings(out.network, out.read, progress=lambda done, total: told.append((done, total)))
    numel = sum(c.numel for c in out.network.cells.values())
    assert told[-1] == (numel, numel)
    assert len(told) == len(out.network.cells)


def test_what_is_not_a_float_is_refused(random_network: Callable[..., Any]) -> None:
    net = random_network()
    for dtype, match in (("F8_E4M3", r"norm.bias is F8_E4M3, an 8-bit float"), ("I64", "norm.bias is I64")):
        odd = Cell("norm.bias", (6,), dtype, dense_view("file.norm.bias", (6,)))
        network = dataclasses.replace(net.network, cells={**net.network.cells, "norm.bias": odd})
        with pytest.raises(Refused, match=match):
            type(net)(network, net.data).edited("cast:F16")
        type(net)(network, net.data).edited("cast:F16,only=*.weight")


def test_wrong_parameters(random_network: Callable[..., Any]) -> None:
    with pytest.raises(UsageError, match="expected one of F64, F32, F16, BF16"):
        random_network().edited("cast:fp16")
    with pytest.raises(UsageError, match=r"only=ls\* matches no tensor"):
        random_network().edited("cast:F16,only=ls*")


def test_gradients_pass_through(held: Callable[..., Any]) -> None:
    net = held({"head.bias": np.array([1e6, 2.0, -1e6])})
    grads = {"head.bias": np.array([1.0, 2.0, 3.0])}
    assert net.edited("cast:F16").pull_back(grads)["head.bias"].tolist() == [1, 2, 3]
    assert net.edited("cast:F16,overflow=clamp").pull_back(grads)["head.bias"].tolist() == [0, 2, 0]
