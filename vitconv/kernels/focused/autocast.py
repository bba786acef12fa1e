"""Emulate CUDA autocast's dtypes on CPU tensors, for the operations that the variants use.

CPU autocast is no stand-in: it runs norm, pow, sum and reciprocal in low precision, CUDA autocast in float32. The mode
follows torch's CUDA flag, so that `torch.autocast("cuda", enabled=False)` inside it works as on a GPU. Matrix products
of half tensors accumulate in float32 on the CPU and are rounded once, as tensor cores do. Source of the two lists:
PyTorch's CUDA autocast op reference ("ops that autocast to float16", "... to float32").
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

LOW = frozenset({"einsum", "matmul", "__matmul__", "__rmatmul__", "bmm", "linear", "conv2d"})
WIDE = frozenset({"pow", "__pow__", "norm", "sum", "reciprocal", "__rtruediv__", "__rdiv__", "softplus", "softmax"})
_FLOATS = (torch.float32, torch.float16, torch.bfloat16)


def _cast(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, Tensor) and value.dtype in _FLOATS:
        return value.to(dtype)
    if isinstance(value, list | tuple):
        return type(value)(_cast(item, dtype) for item in value)
    return value


class _Emulated(TorchFunctionMode):
    """Cast the arguments of the listed operations while torch's CUDA autocast flag is on."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if torch.is_autocast_enabled("cuda") and (name in LOW or name in WIDE):
            args = _cast(args, torch.get_autocast_dtype("cuda") if name in LOW else torch.float32)
        return func(*args, **(kwargs or {}))


@contextmanager
def emulate_cuda_autocast(dtype: torch.dtype = torch.float16) -> Iterator[None]:
    """Run the block as CUDA autocast to `dtype` would, on CPU tensors; the flag and dtype are put back afterwards."""
    before = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", dtype)
    try:
        with _Emulated():
            yield
    finally:
        torch.set_autocast_enabled("cuda", before[0])
        torch.set_autocast_dtype("cuda", before[1])


@contextmanager
def uncast(device_type: str) -> Iterator[None]:
    """Turn autocast off for a device, and for CUDA, whose flag the emulation follows."""
    with torch.autocast(device_type, enabled=False), torch.autocast("cuda", enabled=False):
        yield
