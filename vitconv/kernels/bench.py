"""Measure the kernels on a GPU: ceilings first, then correctness, then time beside the peers; the result is plain data.

`run` returns a dictionary ready for JSON. On a CPU it runs the same steps on tiny shapes, to show that it runs, and its
`claim` says that its times mean nothing. Work that no longer fits the time budget is listed as left out. A failed
correctness row does not stop the timing, but `correct` is then false and so is every speed claim.
"""

from __future__ import annotations

import importlib.metadata
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from math import isfinite
from typing import Any

import torch
import torch._functorch.config as functorch
from torch import Tensor

from vitconv.errors import UsageError
from vitconv.kernels import tolerance
from vitconv.kernels.bench_cases import Case, cases, corners, correctness_inputs
from vitconv.kernels.targets import targets
from vitconv.kernels.timing import measure, rotating

# Seconds of repeated calls for one figure.
EACH = 0.2


def versions() -> dict[str, str]:
    """Return the versions that decide a measurement, and "not installed" for absent peers."""
    found = {"python": platform.python_version(), "torch": torch.__version__}
    for name in ("triton", "liger-kernel"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def ceilings(device: torch.device, *, tiny: bool) -> dict[str, float]:
    """Measure what the device can do: copy in GB/s (read and write counted), 16-bit matmul in TFLOP/s."""
    n = 2**16 if tiny else 2**29
    source, target = (torch.empty(n, dtype=torch.uint8, device=device) for _ in range(2))
    copy = measure(lambda: target.copy_(source), device, 0.5).median
    side = 64 if tiny else 8192
    a, b = (torch.randn(side, side, device=device).bfloat16() for _ in range(2))
    matmul = measure(lambda: a @ b, device, 0.5).median
    return {"copy_gb_s": 2 * n / copy / 1e3, "matmul_tflop_s": 2 * side**3 / matmul / 1e6}


def _grads(function: Callable[..., Tensor], inputs: Sequence[Tensor], grad: Tensor) -> list[Tensor]:
    leaves = [x.detach().requires_grad_() for x in inputs]
    y = function(*leaves)
    return [y.detach(), *torch.autograd.grad(y, leaves, grad.to(y.dtype))]


def check(case: Case, device: torch.device) -> dict[str, Any]:
    """Compare `own` with float64 and with itself; fresh memory is NaN, so that what is not written is seen.

    float64 is the same function on the CPU-proved reference path; how far `own` may be from it, `tolerance` says. Two
    runs must agree bit for bit.
    """
    inputs, grad = correctness_inputs(case, device)
    own = case.providers["own"]
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        got, again = _grads(own, inputs, grad), _grads(own, inputs, grad)
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
    floor_kind = ("forward", "backward") if case.kernel == "focused attention" else ("", "")
    plain = _grads(case.reference, inputs, grad)
    exact = _grads(case.reference, [x.double() for x in inputs], grad.double())
    errors, limits = [], []
    for i, (g, p, e) in enumerate(zip(got, plain, exact, strict=True)):
        # Sums over rows in float32 are computed from 16-bit operands where the output is 16 bit.
        dtype = case.out_dtype if g.dtype == torch.float32 else g.dtype
        floor = tolerance.floor(dtype, focused=floor_kind[min(i, 1)])
        errors.append(tolerance.error(g, e))
        limits.append(tolerance.allowed(tolerance.error(p, e), floor))
    same = all(torch.equal(g, a) for g, a in zip(got, again, strict=True))
    passed = same and all(error <= limit for error, limit in zip(errors, limits, strict=True))
    return _checked(case, passed, "" if same else "two runs differ", errors, limits)


def _checked(
    case: Case, passed: bool, said: str, errors: Sequence[float] = (), limits: Sequence[float] = ()
) -> dict[str, Any]:
    # JSON has no infinity: None stands for what is not finite.
    told = [e if isfinite(e) else None for e in errors]
    return {"kernel": case.kernel, "case": case.label, "passed": passed, "said": said, "errors": told,
            "limits": list(limits)}  # fmt: skip


def _measure(case: Case, provider: str, device: torch.device, budget: float) -> list[dict[str, Any]]:
    function = case.providers[provider]

    def prepared() -> tuple[list[Tensor], Tensor, Tensor]:
        leaves = [x.requires_grad_() for x in case.make(device)]
        y = function(*leaves)
        return leaves, y, torch.ones_like(y)

    take = rotating(prepared, case.forward.floor, device)

    def forward() -> None:
        with torch.no_grad():
            function(*take()[0])

    def backward() -> None:
        leaves, y, grad = take()
        torch.autograd.grad(y, leaves, grad, retain_graph=True)

    def both() -> None:
        leaves, _, grad = take()
        torch.autograd.grad(function(*leaves), leaves, grad)

    fore, back = case.forward, case.backward
    rows = []
    for name, call, cost in (("forward", forward, fore), ("backward", backward, back), ("both", both, fore + back)):
        times = measure(call, device, budget)
        samples, median = times.samples, times.median
        rows.append(
            {
                "kernel": case.kernel, "case": case.label, "width": case.width, "provider": provider, "pass": name,
                "median_us": median, "p10_us": samples[len(samples) // 10],
                "p90_us": samples[(9 * len(samples)) // 10], "samples": len(samples), "host_us": times.host,
                "floor_bytes": cost.floor, "planned_bytes": cost.plan, "gb_s": cost.floor / median / 1e3,
                "tflop_s": cost.flops / median / 1e6,
            }
        )  # fmt: skip
    return rows


def _broken(case: Case, error: Exception) -> dict[str, Any]:
    return _checked(case, False, f"{type(error).__name__}: {str(error)[:200]}")


def _order(work: Sequence[Case]) -> Iterator[tuple[Case, str]]:
    """Yield what is timed: our kernels and their quick peers first, then those that take long to compile."""
    for slow in (False, True):
        for case in work:
            yield from ((case, provider) for provider in case.providers if (provider == "compile") == slow)


def run(device: str = "cpu", *, seconds: float = 420.0, compiled: bool | None = None) -> dict[str, Any]:
    """Run the benchmark on "cuda" (full shapes) or "cpu" (tiny shapes, no claim) within a budget in seconds.

    Keys: device, versions, claim, ceilings, correct, checks, rows, targets, left_out. Each row has share_of_copy, its
    rate over the measured copy rate, ratio_to_eager, and times_plan, its time over that of its planned bytes at the
    copy rate. What begins within the budget is finished: the default leaves a minute of eight for it. Raises UsageError
    when the device cannot be used.
    """
    if device not in ("cpu", "cuda") or (device == "cuda" and not torch.cuda.is_available()):
        raise UsageError(f"device {device!r} cannot be benchmarked here; expected 'cuda' with a GPU, or 'cpu'")
    where, tiny = torch.device(device), device == "cpu"
    deadline = time.monotonic() + seconds
    work = list(cases(tiny=tiny, compiled=(not tiny) if compiled is None else compiled))
    top = ceilings(where, tiny=tiny)
    checks: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    left: list[str] = []
    for case in [*work, *corners()]:
        if time.monotonic() > deadline - 0.6 * seconds and not tiny:
            left.append(f"check of {case.kernel} {case.label}: over budget")
            continue
        try:
            checks.append(check(case, where))
        # One broken kernel must not cost the figures of the others.
        except Exception as e:
            checks.append(_broken(case, e))
        _release(where)
    # torch.compile may let a backward reuse the memory of what it reads; it then refuses to run twice, as it must here.
    with functorch.patch(donated_buffer=False):
        for case, provider in _order(work):
            if time.monotonic() > deadline:
                left.append(f"{case.kernel} {case.label} {provider}: over budget")
                continue
            try:
                rows += _measure(case, provider, where, EACH)
            # A peer that cannot run is left out, and says why.
            except Exception as e:
                left.append(f"{case.kernel} {case.label} {provider}: {type(e).__name__}: {str(e)[:200]}")
                if provider == "own":
                    checks.append(_broken(case, e))
            if provider == "compile":
                # Every case compiles the same lines anew, and torch does so eight times at most.
                torch.compiler.reset()
            _release(where)
    _relate(rows, top)
    return {
        "device": torch.cuda.get_device_name() if device == "cuda" else f"CPU ({platform.machine()})",
        "versions": versions(),
        "claim": "none: run on a CPU, on tiny shapes" if tiny else "",
        "ceilings": top,
        "correct": bool(checks) and all(row["passed"] for row in checks),
        "checks": checks,
        "rows": rows,
        "targets": [] if tiny else targets(rows),
        "left_out": left,
    }


def _release(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _relate(rows: list[dict[str, Any]], top: dict[str, float]) -> None:
    """Add share_of_copy, ratio_to_eager and times_plan to each row."""
    eager = {(r["case"], r["pass"]): r["median_us"] for r in rows if r["provider"] == "eager"}
    for row in rows:
        row["share_of_copy"] = row["gb_s"] / top["copy_gb_s"]
        row["times_plan"] = row["median_us"] * 1e3 * top["copy_gb_s"] / row["planned_bytes"]
        base = eager.get((row["case"], row["pass"]))
        row["ratio_to_eager"] = None if base is None else base / row["median_us"]
