"""Run the benchmark's every step on tiny CPU shapes; what it reports must be complete and claim nothing."""

import dataclasses
import json

import pytest
import torch

from vitconv.errors import UsageError
from vitconv.kernels import bench, timing
from vitconv.kernels.bench_cases import cases, corners
from vitconv.kernels.targets import targets


@pytest.fixture(scope="module")
def report():
    return bench.run("cpu", compiled=False)


def test_a_cpu_run_is_complete_correct_and_claims_nothing(report):
    assert report["claim"] == "none: run on a CPU, on tiny shapes"
    assert report["correct"] is True
    assert report["left_out"] == []
    assert report["targets"] == []
    assert {row["kernel"] for row in report["checks"]} == {"focused attention", "layer norm", "mlp epilogue"}
    kinds = {(row["kernel"], row["provider"], row["pass"]) for row in report["rows"]}
    for kernel in ("focused attention", "layer norm", "mlp epilogue"):
        for provider in ("eager", "own"):
            assert {(kernel, provider, name) for name in ("forward", "backward", "both")} <= kinds


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


def test_a_result_that_is_not_finite_is_plain_json():
    case = next(iter(cases(tiny=True, compiled=False)))
    own = case.providers["own"]
    broken = dataclasses.replace(case, providers={"own": lambda *inputs: own(*inputs) * float("inf")})
    outcome = bench.check(broken, torch.device("cpu"))
    assert not outcome["passed"]
    assert None in json.loads(json.dumps(outcome, allow_nan=False))["errors"]


def test_slow_compilers_come_last():
    order = [provider for _, provider in bench._order(list(cases(tiny=True, compiled=True)))]
    assert order[-3:] == ["compile"] * 3
    assert order.count("compile") == 3


def test_corners_hold_every_dtype_of_every_kernel_and_dead_tokens():
    found = list(corners())
    for kernel in ("focused attention", "layer norm", "mlp epilogue"):
        dtypes = {case.out_dtype for case in found if case.kernel == kernel}
        assert dtypes == {torch.float16, torch.bfloat16, torch.float32}
    dead = next(case for case in found if "dead" in case.label).make(torch.device("cpu"))
    assert (dead[0][..., :32] <= 0).all()
    assert (dead[1][:, 0] <= 0).all()


class Card:
    """Play a card whose calls take 50 microseconds and whose host takes longer to hand them over."""

    def __init__(self):
        self.queued, self.paused, self.now = 0.0, [], 0.0

    def event(self, *, enable_timing):
        assert enable_timing
        card = self

        class Event:
            def record(self):
                self.at = card.queued

            def elapsed_time(self, other):
                return (other.at - self.at) * 1e3

        return Event()


def test_calls_are_queued_behind_a_pause_of_the_card(monkeypatch):
    card, clock = Card(), iter(range(10**6))
    monkeypatch.setattr(torch.cuda, "Event", card.event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "_sleep", card.paused.append)
    # Three calls are handed over in one tick: 300 microseconds each on the host.
    monkeypatch.setattr(timing.time, "perf_counter", lambda: next(clock) * 9e-4)
    calls = []

    def call():
        calls.append(None)
        card.queued += 50e-6

    times = timing.measure(call, torch.device("cuda"), 0.018)
    assert times.median == pytest.approx(50.0)
    assert times.host == pytest.approx(300.0)
    # 18 ms at 600 microseconds a call; ten calls are handed over in 3 ms.
    assert len(times.samples) == 30
    assert len(card.paused) == 3
    # The card pauses for half as long again as the host needs.
    assert card.paused[0] == pytest.approx(1.5 * 10 * 300e-6 * 2e9)
    assert len(calls) == 1 + 3 + 3 + 30


def test_enough_buffers_rotate_to_overflow_the_cache():
    made = []

    def make():
        made.append(None)
        return [len(made)]

    take = timing.rotating(make, 50 * 2**20, torch.device("cuda"))
    assert len(made) == 4
    assert sorted(take()[0] for _ in range(4)) == [1, 2, 3, 4]


def row(kernel, provider, name, **values):
    given = {"width": 768, "case": "case", "share_of_copy": 0.9, "ratio_to_eager": 9.0, "times_plan": 1.5}
    return {"kernel": kernel, "provider": provider, "pass": name, "median_us": 100.0, **given, **values}


def test_targets_are_held_against_the_rows_of_ours():
    rows = [
        row("layer norm", "own", "forward"),
        row("layer norm", "own", "backward", share_of_copy=0.8),
        row("layer norm", "own", "forward", width=96, share_of_copy=0.1),
        row("layer norm", "liger", "forward", share_of_copy=0.1),
        row("focused attention", "own", "both", times_plan=2.5),
        row("focused attention", "compile", "both", median_us=90.0),
    ]
    found = [(t["kernel"], t["pass"], t["what"].partition(",")[0], t["met"]) for t in targets(rows)]
    assert found == [
        ("layer norm", "forward", "share of copy", True),
        ("layer norm", "backward", "share of copy", False),
        ("focused attention", "both", "times as fast as eager", True),
        ("focused attention", "both", "times as fast as torch.compile", False),
        ("focused attention", "both", "times its planned bytes", False),
    ]
