"""Run the benchmark's every step on tiny CPU shapes; what it reports must be complete and claim nothing."""

import dataclasses
import json

import pytest
import torch

from vitconv.errors import UsageError
from vitconv.kernels import bench
from vitconv.kernels.bench_cases import cases


@pytest.fixture(scope="module")
def report():
    return bench.run("cpu", compiled=False)


def test_a_cpu_run_is_complete_correct_and_claims_nothing(report):
    assert report["claim"] == "none: run on a CPU, on tiny shapes"
    assert report["correct"] is True
    assert report["left_out"] == []
    assert {row["kernel"] for row in report["checks"]} == {"focused attention", "layer norm", "mlp epilogue"}
    kinds = {(row["kernel"], row["provider"], row["pass"]) for row in report["rows"]}
    for kernel in ("focused attention", "layer norm", "mlp epilogue"):
        for provider in ("eager", "own"):
            assert {(kernel, provider, "forward"), (kernel, provider, "backward")} <= kinds


def test_rows_are_json_and_related_to_the_measured_ceilings(report):
    assert json.loads(json.dumps(report)) == report
    for row in report["rows"]:
        assert row["median_us"] > 0
        assert row["gb_s"] == pytest.approx(row["floor_bytes"] / row["median_us"] / 1e3)
        assert row["share_of_copy"] == pytest.approx(row["gb_s"] / report["ceilings"]["copy_gb_s"])
        copied = row["planned_bytes"] / report["ceilings"]["copy_gb_s"] / 1e3
        assert row["times_plan"] == pytest.approx(row["median_us"] / copied)
        if row["provider"] == "eager":
            assert row["ratio_to_eager"] == pytest.approx(1.0)


def test_versions_name_absent_peers():
    assert set(bench.versions()) == {"python", "torch", "triton", "liger-kernel"}


def test_a_wrong_kernel_is_not_correct():
    case = next(iter(cases(tiny=True, compiled=False)))
    right = case.providers["own"]

    def off_by_two_percent(*inputs):
        return right(*inputs) * (1.0 if inputs[0].dtype == torch.float64 else 1.02)

    wrong = dataclasses.replace(case, providers={"own": off_by_two_percent})
    assert bench.check(case, torch.device("cpu"))["passed"]
    assert not bench.check(wrong, torch.device("cpu"))["passed"]


def test_a_provider_that_breaks_is_left_out_and_says_why(monkeypatch):
    """A peer that cannot run costs no other figure; our own kernel that cannot is not correct."""
    real = next(iter(cases(tiny=True, compiled=False)))

    def broken(*_):
        raise RuntimeError("no such kernel image")

    for name, correct in (("peer", True), ("own", False)):
        case = dataclasses.replace(real, providers={**real.providers, name: broken})
        monkeypatch.setattr(bench, "cases", lambda *, tiny, compiled, case=case: iter([case]))
        found = bench.run("cpu")
        assert found["correct"] is correct
        assert any(f"{name}: RuntimeError: no such kernel image" in text for text in found["left_out"])
        assert {row["provider"] for row in found["rows"]} == set(real.providers) - {name}


def test_full_shapes_cover_the_widths_and_networks_asked_for():
    labels = [case.label for case in cases(tiny=False, compiled=False)]
    for wanted in (
        "[50432, 768] bfloat16",
        "[16384, 4096]",
        "[401408, 96]",
        "[128, 3136, 96] 3 heads",
        "[50432, 3072]",
    ):
        assert any(wanted in label for label in labels), wanted


def test_an_unusable_device_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UsageError, match="'cuda' with a GPU, or 'cpu'"):
        bench.run("cuda")
