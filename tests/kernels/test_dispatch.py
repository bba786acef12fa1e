"""Hold the dispatch: which path, and the reason in words; machines are values, so no GPU is needed."""

import pytest
import torch

from vitconv.errors import Refused, UsageError
from vitconv.kernels.dispatch import Machine, Request, choose, machine, same_device, together

H200 = Machine(triton=True, interpreter=False, capability=(9, 0))
F16 = torch.float16


@pytest.mark.parametrize(
    ("request_", "offers", "path", "why"),
    [
        (Request("k", "cuda", (F16,)), H200, "triton", "supported"),
        (Request("k", "cuda", (F16,)), Machine(False, False, (9, 0)), "torch", "triton is not installed"),
        (Request("k", "cuda", (F16,)), Machine(True, False, (7, 5)), "torch", "capability 7.5, the kernels need 8.0"),
        (Request("k", "cuda", (F16,)), Machine(True, False, None), "torch", "no NVIDIA GPU can be reached"),
        (Request("k", "cuda", (F16,)), Machine(True, True, (9, 0)), "torch", "TRITON_INTERPRET=1 is set"),
        (Request("k", "cuda", (torch.float64, F16)), H200, "torch", "dtype float64 is none of"),
        (Request("k", "cuda", (F16,), ("width 9000 is above 8192",)), H200, "torch", "width 9000"),
        (Request("k", "cpu", (F16,)), Machine(True, False, None), "torch", "the tensors are on the CPU"),
        (Request("k", "cpu", (F16,)), Machine(True, True, None), "torch", "only when asked for"),
        (Request("k", "mps", (F16,)), Machine(True, False, None), "torch", "device mps is neither"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_auto_says_why(request_, offers, path, why):
    choice = choose(request_, "auto", offers)
    assert choice.path == path
    assert why in choice.why
    assert choice.triton == (path == "triton")
    assert str(choice) == f"k: {path} ({choice.why})"


def test_torch_is_never_questioned():
    assert choose(Request("k", "cuda", (F16,)), "torch", H200).why == "asked for"


def test_triton_insists_and_reports_every_obstacle_at_once():
    request = Request("k", "cpu", (torch.float64,), ("width 9000 is above 8192",))
    with pytest.raises(Refused) as caught:
        choose(request, "triton", Machine(False, False, None))
    for reason in ("triton is not installed", "TRITON_INTERPRET=1 is not set", "float64", "width 9000", "'auto'"):
        assert reason in str(caught.value)


def test_triton_runs_on_the_cpu_under_the_interpreter():
    assert choose(Request("k", "cpu", (F16,)), "triton", Machine(True, True, None)).triton


def test_an_unknown_backend_is_refused():
    with pytest.raises(UsageError, match="'liger' is unknown; expected one of auto, torch, triton"):
        choose(Request("k", "cpu", ()), "liger")


def test_this_machine_is_described_without_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    found = machine()
    assert (found.interpreter, found.capability) == (True, None)


def test_small_helpers():
    assert together("a", None, "b") == ("a", "b")
    assert same_device((torch.zeros(1), None)) is None
    assert same_device((torch.zeros(1), torch.zeros(1, device="meta"))) == "the tensors are on cpu, meta"
