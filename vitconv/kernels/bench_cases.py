"""The workloads that are measured, each with its peers and the bytes and operations it needs.

Full shapes are those of real networks at real batch sizes; `tiny` ones exercise the same code in a second on a CPU.
Bytes follow from the tensors that a pass reads and writes; `plan` counts what our kernels read more than once.
`corners` are small and only checked.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitconv.kernels.epilogue.module import epilogue
from vitconv.kernels.focused.attention import focused_attention
from vitconv.kernels.focused.variants import upstream_fix
from vitconv.kernels.layer_norm.module import layer_norm


@dataclass(frozen=True)
class Cost:
    """Hold what a pass needs: bytes that any implementation moves, bytes that ours moves, FLOPs of its products."""

    floor: int
    plan: int
    flops: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.floor + other.floor, self.plan + other.plan, self.flops + other.flops)


@dataclass(frozen=True)
class Case:
    """Hold one workload: inputs (made anew by `make`), providers by name, and the cost of each pass.

    `reference` is what `own` computes, in plain PyTorch.
    """

    kernel: str
    label: str
    width: int
    make: Callable[[torch.device], list[Tensor]]
    providers: dict[str, Callable[..., Tensor]]
    reference: Callable[..., Tensor]
    out_dtype: torch.dtype
    forward: Cost
    backward: Cost


def size(dtype: torch.dtype) -> int:
    """Return the bytes of one element."""
    return torch.empty(0, dtype=dtype).element_size()


def short(dtype: torch.dtype) -> str:
    """Return float16 for torch.float16."""
    return str(dtype).removeprefix("torch.")


def liger_layer_norm() -> Callable[..., Tensor] | None:
    """Return Liger's LayerNorm as a function of x, weight, bias, or None where it is not installed."""
    if importlib.util.find_spec("liger_kernel") is None:
        return None
    from liger_kernel.ops.layer_norm import LigerLayerNormFunction

    return lambda x, weight, bias: LigerLayerNormFunction.apply(x, weight, bias, 1e-6)


def _norm(
    rows: int, d: int, x_dtype: torch.dtype, out: torch.dtype, *, compiled: bool = False, backend: str = "auto"
) -> Case:
    def make(device: torch.device) -> list[Tensor]:
        x = (torch.randn(rows, d, device=device) * 2 + 1).to(x_dtype)
        return [x, torch.randn(d, device=device), torch.randn(d, device=device)]

    def eager(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.layer_norm(x.float(), (d,), weight, bias, 1e-6).to(out)

    def ours(backend: str) -> Callable[..., Tensor]:
        def run(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
            to = x.dtype if x.dtype == torch.float64 else out
            return layer_norm(x, weight, bias, 1e-6, out_dtype=to, backend=backend)

        return run

    providers: dict[str, Callable[..., Tensor]] = {"eager": eager, "own": ours(backend)}
    if compiled:
        providers["compile"] = torch.compile(eager, dynamic=False)
    liger = liger_layer_norm()
    if liger is not None and x_dtype == out:
        providers["liger"] = liger
    forward = rows * d * (size(x_dtype) + size(out))
    backward = rows * d * (2 * size(x_dtype) + size(out))
    label = f"[{rows}, {d}] {short(x_dtype)} -> {short(out)}"
    costs = Cost(forward, forward), Cost(backward, backward)
    return Case("layer norm", label, d, make, providers, ours("torch"), out, *costs)


def _epilogue(
    rows: int, m: int, dtype: torch.dtype, p: float, *, compiled: bool = False, backend: str = "auto"
) -> Case:
    def make(device: torch.device) -> list[Tensor]:
        return [torch.randn(rows, m, device=device).to(dtype), torch.randn(m, device=device)]

    def eager(x: Tensor, bias: Tensor) -> Tensor:
        return F.dropout(F.gelu(x + bias.to(x.dtype)), p, training=True)

    def ours(backend: str) -> Callable[..., Tensor]:
        return lambda x, bias: epilogue(x, bias, p=p, seed=1, backend=backend)

    providers: dict[str, Callable[..., Tensor]] = {"eager": eager, "own": ours(backend)}
    if compiled:
        providers["compile"] = torch.compile(eager, dynamic=False)
    forward, backward = 2 * rows * m * size(dtype), 3 * rows * m * size(dtype)
    label = f"[{rows}, {m}] {short(dtype)} p {p}"
    costs = Cost(forward, forward), Cost(backward, backward)
    return Case("mlp epilogue", label, m, make, providers, ours("torch"), dtype, *costs)


def _focused(
    b: int, t: int, d: int, heads: int, dtype: torch.dtype, *, compiled: bool = False, backend: str = "auto",
    dead: bool = False,
) -> Case:  # fmt: skip
    def make(device: torch.device) -> list[Tensor]:
        q, k, v, add = (torch.randn(b, t, d, device=device) for _ in range(4))
        if dead:
            # One head of the queries and some keys have no positive channel.
            q[..., : d // heads], k[:, ::7] = -q[..., : d // heads].abs(), -k[:, ::7].abs()
        q, k, v, add = (x.to(dtype) for x in (q, k, v, add))
        return [q, k, v, torch.zeros(1, 1, d, device=device), torch.zeros(1, t, d, device=device), add]

    # Eager runs as under autocast: features in float32, products in the 16-bit dtype.
    def eager(q: Tensor, k: Tensor, v: Tensor, scale: Tensor, position: Tensor, add: Tensor) -> Tensor:
        with torch.autocast(q.device.type, dtype, enabled=dtype != torch.float32):
            return (upstream_fix(q, k, v, scale, position, heads=heads, power=3) + add).to(dtype)

    def ours(backend: str) -> Callable[..., Tensor]:
        return lambda q, k, v, scale, position, add: focused_attention(
            q, k, v, scale, position, heads=heads, add=add, backend=backend
        )

    plain = ours("torch")
    providers: dict[str, Callable[..., Tensor]] = {"eager": eager, "stable in torch": plain, "own": ours(backend)}
    if compiled:
        providers["compile"] = torch.compile(eager, dynamic=False)
    elements, width = b * t * d, size(dtype)
    # Floor: q, k, v, branch in, out; backward q, k, v, cotangent in, three gradients out.
    floor, floor_back = 5 * elements * width, 7 * elements * width
    # Plan: statistics read q and k again; backward reads q, g, k, v twice.
    plan, plan_back = 7 * elements * width, 11 * elements * width
    e = d // heads
    label = f"[{b}, {t}, {d}] {heads} heads {short(dtype)}" + (", dead head and tokens" if dead else "")
    costs = Cost(floor, plan, 4 * elements * e), Cost(floor_back, plan_back, 10 * elements * e)
    return Case("focused attention", label, d, make, providers, plain, dtype, *costs)


def cases(*, tiny: bool, compiled: bool) -> Iterator[Case]:
    """Yield the workloads, most wanted first; `compiled` adds torch.compile as a provider."""
    f16, bf16, f32 = torch.float16, torch.bfloat16, torch.float32
    if tiny:
        yield _focused(2, 49, 48, 3, bf16, compiled=compiled)
        yield _norm(64, 96, f32, bf16, compiled=compiled)
        yield _epilogue(16, 128, bf16, 0.1, compiled=compiled)
        return
    yield _focused(128, 3136, 96, 3, f16, compiled=compiled)
    yield _norm(50432, 768, bf16, bf16, compiled=compiled)
    yield _norm(50432, 768, f32, bf16, compiled=compiled)
    yield _focused(128, 784, 192, 6, f16, compiled=False)
    yield _focused(32, 9216, 128, 4, bf16, compiled=compiled)
    yield _focused(256, 196, 384, 6, bf16, compiled=False)
    for rows, d in ((25216, 1024), (50432, 384), (401408, 96), (32768, 2048), (16384, 4096), (8192, 8192)):
        yield _norm(rows, d, bf16, bf16, compiled=False)
    yield _norm(50432, 768, f32, f32, compiled=compiled)
    yield _focused(128, 3136, 64, 1, f16, compiled=False)
    yield _epilogue(50432, 3072, bf16, 0.1, compiled=compiled)
    yield _epilogue(50432, 3072, bf16, 0.0, compiled=False)


def corners(backend: str = "auto") -> Iterator[Case]:
    """Yield what is checked and not timed: odd widths, one row, padded heads, dead heads and tokens, every dtype."""
    f16, bf16, f32 = torch.float16, torch.bfloat16, torch.float32
    for dtype in (f16, bf16, f32):
        yield _focused(1, 33, 72, 3, dtype, backend=backend)
        yield _norm(37, 100, dtype, dtype, backend=backend)
        yield _epilogue(37, 197, dtype, 0.1, backend=backend)
    yield _focused(1, 49, 64, 2, f16, backend=backend, dead=True)
    yield _norm(1, 1408, f32, f16, backend=backend)


def correctness_inputs(case: Case, device: torch.device) -> tuple[list[Tensor], Any]:
    """Make the case's inputs with a fixed seed, and a cotangent of its output's dtype and shape."""
    torch.manual_seed(0)
    inputs = case.make(device)
    return inputs, torch.randn(inputs[0].shape, device=device).to(case.out_dtype)
