"""The precisions a trace can run in, and what makes torch compute so."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

from vitconv.errors import UsageError
from vitconv.parity.autocast import cuda_policy_on_cpu
from vitconv.parity.products import RoundedProducts
from vitconv.parity.tf32 import RoundOperands


@dataclass(frozen=True)
class Precision:
    """One precision: the dtype of parameters and inputs, the dtype of autocast, the unit roundoff of its products."""

    name: str
    title: str
    dtype: torch.dtype
    unit: float
    autocast: torch.dtype | None = None


# Unit roundoff: half the distance from 1 to the next number; TF32 has 10 bits after the point, as float16.
_TABLE: Mapping[str, Precision] = {
    p.name: p
    for p in (
        Precision("fp64", "float64", torch.float64, 2.0**-53),
        Precision("fp32", "float32, TF32 off", torch.float32, 2.0**-24),
        Precision("tf32", "float32 with TF32 products", torch.float32, 2.0**-11),
        Precision("amp-fp16", "autocast to float16", torch.float32, 2.0**-11, torch.float16),
        Precision("amp-bf16", "autocast to bfloat16", torch.float32, 2.0**-8, torch.bfloat16),
        Precision("fp16", "float16 throughout", torch.float16, 2.0**-11),
        Precision("bf16", "bfloat16 throughout", torch.bfloat16, 2.0**-8),
    )
}
PRECISIONS = tuple(_TABLE)


@dataclass(frozen=True)
class Running:
    """A precision in force. `forward` gives the context for the forward pass; `lifted` names casts that were lifted."""

    precision: Precision
    forward: Callable[[], AbstractContextManager[Any]]
    lifted: list[str]


def precision_of(name: str) -> Precision:
    """Return the precision of this name.

    Raises:
        UsageError: no such precision.
    """
    if name not in _TABLE:
        raise UsageError(f"precision {name!r}: expected one of {', '.join(PRECISIONS)}")
    return _TABLE[name]


def emulated(name: str, device: str | torch.device) -> str | None:
    """Return in words how a precision is emulated on this device, or None when it is the real one."""
    precision = precision_of(name)
    if torch.device(device).type == "cuda":
        return None
    if name == "tf32":
        return "emulated: the operands of every product are rounded to 10 bits, sums are float32"
    float16 = torch.float16 in (precision.autocast, precision.dtype)
    how = "are summed in float32 and rounded once, as tensor cores do" if float16 else "accumulate as the CPU does"
    if precision.autocast is not None:
        return f"emulated: CUDA autocast's dtype policy on CPU; products {how}"
    if precision.dtype in (torch.float16, torch.bfloat16):
        return f"on CPU: products {how}"
    return None


@contextmanager
def running(name: str, device: str | torch.device) -> Iterator[Running]:
    """Make torch compute in this precision while the context lasts: forward and backward pass belong inside."""
    precision, lifted = precision_of(name), list[str]()
    cuda = torch.device(device).type == "cuda"
    if name == "fp64":
        yield Running(precision, lambda: _lifting(lifted), lifted)
    elif precision.autocast is not None:
        if cuda:
            kind = precision.autocast
            with _tf32(False):
                yield Running(precision, lambda: torch.autocast("cuda", dtype=kind), lifted)
        else:
            with _products(precision.autocast), cuda_policy_on_cpu(precision.autocast) as switched_on:
                yield Running(precision, switched_on, lifted)
    elif name == "tf32" and not cuda:
        # The fused attention of the CPU has no products to get at; composed of bmm it has.
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH), RoundOperands():
            yield Running(precision, nullcontext, lifted)
    else:
        with _tf32(name == "tf32") if cuda else _products(precision.dtype):
            yield Running(precision, nullcontext, lifted)


def _products(low: torch.dtype) -> AbstractContextManager[Any]:
    """Compute float16's products on a CPU as tensor cores do; bfloat16's a CPU sums in float32 by itself."""
    return RoundedProducts(low) if low == torch.float16 else nullcontext()


@contextmanager
def _tf32(on: bool) -> Iterator[None]:
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = on
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before


@contextmanager
def _lifting(lifted: list[str]) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with _Lift(lifted):
            yield
    finally:
        torch.set_default_dtype(before)


class _Lift(TorchFunctionMode):
    """Make what code casts to float32 on purpose float64, so that float64 is float64 throughout.

    Networks ask for a softmax or a norm in float32, which is more than half precision and less than float64.
    """

    def __init__(self, lifted: list[str]) -> None:
        super().__init__()
        self.lifted = lifted

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is Tensor.float:
            self.lifted.append("float")
            return args[0].double()
        # Every function of torch takes a dtype as an argument of its own, none inside a list.
        found = any(x is torch.float32 for x in args) or any(x is torch.float32 for x in kwargs.values())
        if found and getattr(func, "__name__", "") != "set_default_dtype":
            self.lifted.append(getattr(func, "__name__", str(func)))
            args, kwargs = tree_map_only(
                torch.dtype, lambda d: torch.float64 if d == torch.float32 else d, (args, kwargs)
            )
        return func(*args, **kwargs)
