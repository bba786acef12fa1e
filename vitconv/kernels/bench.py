"""Measure the kernels on a GPU: ceilings first, then correctness, then time beside the peers; the result is plain data.

`run` returns a dictionary ready for JSON. On a CPU it runs the same steps on tiny shapes, to show that it runs, and its
`claim` says that its times mean nothing. Work that no longer fits the time budget is listed as left out. A failed
correctness row does not stop the timing, but `correct` is then false and so is every speed claim.
"""

from __future__ import annotations

import importlib.metadata
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from vitconv.errors import UsageError
from vitconv.kernels import tolerance
from vitconv.kernels.bench_cases import Case, cases, correctness_inputs

# More than the last-level cache of any current GPU, so that rotating buffers cannot be served from it.
CACHE = 180 * 2**20


def versions() -> dict[str, str]:
    """Return the versions that decide a measurement, and "not installed" for absent peers."""
    found = {"python": platform.python_version(), "torch": torch.__version__}
    for name in ("triton", "liger-kernel"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def _times(call: Callable[[], object], device: torch.device, budget_ms: float) -> list[float]:
    """Time a call repeatedly, in microseconds: by events on a GPU, by the clock on a CPU."""
    call()
    if device.type != "cuda":
        samples = []
        for _ in range(3):
            start = time.perf_counter()
            call()
            samples.append((time.perf_counter() - start) * 1e6)
        return samples
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    call()
    end.record()
    torch.cuda.synchronize()
    repeats = max(10, min(200, int(budget_ms / max(start.elapsed_time(end), 1e-3))))
    events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(repeats)]
    for before, after in events:
        before.record()
        call()
        after.record()
    torch.cuda.synchronize()
    return [before.elapsed_time(after) * 1e3 for before, after in events]


def _rotating(make: Callable[[], Sequence[Any]], nbytes: int, device: torch.device) -> Callable[[], Any]:
    """Return a function that hands out ready inputs in turn, enough of them to overflow the cache."""
    count = max(1, min(8, -(-CACHE // max(1, nbytes)))) if device.type == "cuda" else 1
    pool, turn = [make() for _ in range(count)], [0]

    def take() -> Any:
        turn[0] = (turn[0] + 1) % count
        return pool[turn[0]]

    return take


def ceilings(device: torch.device, *, tiny: bool) -> dict[str, float]:
    """Measure what the device can do: copy in GB/s (read and write counted), 16-bit matmul in TFLOP/s."""
    n = 2**16 if tiny else 2**29
    source, target = (torch.empty(n, dtype=torch.uint8, device=device) for _ in range(2))
    copy = statistics.median(_times(lambda: target.copy_(source), device, 500))
    side = 64 if tiny else 8192
    a, b = (torch.randn(side, side, device=device).bfloat16() for _ in range(2))
    matmul = statistics.median(_times(lambda: a @ b, device, 500))
    return {"copy_gb_s": 2 * n / copy / 1e3, "matmul_tflop_s": 2 * side**3 / matmul / 1e6}


def _grads(function: Callable[..., Tensor], inputs: Sequence[Tensor], grad: Tensor) -> list[Tensor]:
    leaves = [x.detach().requires_grad_() for x in inputs]
    y = function(*leaves)
    return [y.detach(), *torch.autograd.grad(y, leaves, grad.to(y.dtype))]


def check(case: Case, device: torch.device) -> dict[str, Any]:
    """Compare `own` with float64 and with itself; fresh memory is NaN, so that what is not written is seen.

    float64 is the same function on the CPU-proved reference path. Two runs must agree bit for bit.
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
    exact = _grads(own, [x.double() for x in inputs], grad.double())
    errors, passed = [], all(torch.equal(g, a) for g, a in zip(got, again, strict=True))
    for i, (g, e) in enumerate(zip(got, exact, strict=True)):
        # Sums over rows in float32 are computed from 16-bit operands where the output is 16 bit.
        dtype = case.out_dtype if g.dtype == torch.float32 else g.dtype
        limit = tolerance.allowed(0.0, tolerance.floor(dtype, focused=floor_kind[min(i, 1)])) * tolerance.FACTOR
        errors.append(tolerance.error(g, e))
        passed = passed and errors[-1] <= limit
    return {"kernel": case.kernel, "case": case.label, "errors": errors, "passed": passed}


def _measure(case: Case, provider: str, device: torch.device, budget_ms: float) -> list[dict[str, Any]]:
    function = case.providers[provider]

    def prepared() -> tuple[list[Tensor], Tensor, Tensor]:
        leaves = [x.requires_grad_() for x in case.make(device)]
        y = function(*leaves)
        return leaves, y, torch.ones_like(y)

    take = _rotating(prepared, case.bytes_forward, device)

    def forward() -> None:
        with torch.no_grad():
            function(*take()[0])

    def backward() -> None:
        leaves, y, grad = take()
        torch.autograd.grad(y, leaves, grad, retain_graph=True)

    rows = []
    for name, call, nbytes, plan, flops in (
        ("forward", forward, case.bytes_forward, case.plan_forward, case.flops_forward),
        ("backward", backward, case.bytes_backward, case.plan_backward, case.flops_backward),
    ):
        times = sorted(_times(call, device, budget_ms))
        median = statistics.median(times)
        rows.append(
            {
                "kernel": case.kernel, "case": case.label, "provider": provider, "pass": name,
                "median_us": median,
                "p10_us": times[len(times) // 10], "p90_us": times[(9 * len(times)) // 10], "samples": len(times),
                "floor_bytes": nbytes, "planned_bytes": plan, "gb_s": nbytes / median / 1e3,
                "tflop_s": flops / median / 1e6,
            }
        )  # fmt: skip
    return rows


def _broken(case: Case, error: Exception) -> dict[str, Any]:
    said = f"{type(error).__name__}: {str(error)[:200]}"
    return {"kernel": case.kernel, "case": case.label, "errors": [float("inf")], "passed": False, "said": said}


def run(device: str = "cpu", *, seconds: float = 420.0, compiled: bool | None = None) -> dict[str, Any]:
    """Run the benchmark on "cuda" (full shapes) or "cpu" (tiny shapes, no claim) within a budget in seconds.

    Keys: device, versions, claim, ceilings, correct, checks, rows, left_out. Each row has share_of_copy, its rate over
    the measured copy rate, ratio_to_eager, and times_plan, its time over that of its planned bytes at the copy rate.
    What begins within the budget is finished: the default leaves a minute of eight for it. Raises UsageError when the
    device cannot be used.
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
    for case in work:
        if time.monotonic() > deadline - 0.7 * seconds and not tiny:
            left.append(f"check of {case.kernel} {case.label}: over budget")
            continue
        try:
            checks.append(check(case, where))
        # One broken kernel must not cost the figures of the others.
        except Exception as e:
            checks.append(_broken(case, e))
    for case in work:
        for provider in case.providers:
            if time.monotonic() > deadline:
                left.append(f"{case.kernel} {case.label} {provider}: over budget")
                continue
            try:
                rows += _measure(case, provider, where, 200.0)
            # A peer that cannot run is left out, and says why.
            except Exception as e:
                left.append(f"{case.kernel} {case.label} {provider}: {type(e).__name__}: {str(e)[:200]}")
                if provider == "own":
                    checks.append(_broken(case, e))
            if where.type == "cuda":
                torch.cuda.empty_cache()
    _relate(rows, top)
    return {
        "device": torch.cuda.get_device_name() if device == "cuda" else f"CPU ({platform.machine()})",
        "versions": versions(),
        "claim": "none: run on a CPU, on tiny shapes" if tiny else "",
        "ceilings": top,
        "correct": bool(checks) and all(row["passed"] for row in checks),
        "checks": checks,
        "rows": rows,
        "left_out": left,
    }


def _relate(rows: list[dict[str, Any]], top: dict[str, float]) -> None:
    """Add share_of_copy, ratio_to_eager and times_plan to each row."""
    eager = {(r["case"], r["pass"]): r["median_us"] for r in rows if r["provider"] == "eager"}
    for row in rows:
        row["share_of_copy"] = row["gb_s"] / top["copy_gb_s"]
        row["times_plan"] = row["median_us"] * 1e3 * top["copy_gb_s"] / row["planned_bytes"]
        base = eager.get((row["case"], row["pass"]))
        row["ratio_to_eager"] = None if base is None else base / row["median_us"]
