"""Run a library's code in float64 throughout, also where it asks for float32 whatever its input is.

Softmax of eager attention, resized position tables, the angles of rotary positions: libraries compute these in float32,
and two of them that compute the same function then part by 1e-8 in float64, more than the smallest fault that shows.
The code that runs is the library's own; only the dtype that it names is another. Float32 runs are left alone.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

# Makes the tables that a network computes for itself and never stores, in the dtype in effect.
Rebuild = Callable[[nn.Module], None]


class _Wide(TorchFunctionMode):
    """Take float64 for float32 in every call of torch."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is Tensor.float:
            func = Tensor.double
        wider = {k: torch.float64 if v is torch.float32 else v for k, v in (kwargs or {}).items()}
        return func(*(torch.float64 if a is torch.float32 else a for a in args), **wider)


def in_float64(
    run: Callable[[nn.Module, Tensor], Tensor], rebuild: Rebuild | None = None
) -> Callable[[nn.Module, Tensor], Tensor]:
    """Return `run` that computes everything in float64 where its images are float64.

    `rebuild` makes anew the tables that the network built in float32 and does not store; they are put back after.
    """

    def wide(module: nn.Module, images: Tensor) -> Tensor:
        if images.dtype != torch.float64:
            return run(module, images)
        with _throughout(module, rebuild):
            return run(module, images)

    return wide


@contextmanager
def _throughout(module: nn.Module, rebuild: Rebuild | None) -> Iterator[None]:
    usual = torch.get_default_dtype()
    held = _tables(module) if rebuild is not None else {}
    _forget(module)
    torch.set_default_dtype(torch.float64)
    try:
        with _Wide():
            for m, tables in held.items():
                for name, table in tables.items():
                    # A new tensor: autograd may still hold the old one.
                    m._buffers[name] = table.clone()  # noqa: SLF001
            if rebuild is not None:
                rebuild(module)
            yield
    finally:
        torch.set_default_dtype(usual)
        for m, tables in held.items():
            m._buffers.update(tables)  # noqa: SLF001
        _forget(module)


def _tables(module: nn.Module) -> dict[nn.Module, dict[str, Tensor]]:
    """Return the floating-point buffers that are not part of the state dict, by module."""
    found: dict[nn.Module, dict[str, Tensor]] = {}
    for m in module.modules():
        for name in m._non_persistent_buffers_set:  # noqa: SLF001
            table = m._buffers.get(name)  # noqa: SLF001
            if table is not None and table.is_floating_point():
                found.setdefault(m, {})[name] = table
    return found


def _forget(module: nn.Module) -> None:
    """Clear what functions in the files of the network's classes remember: it has the dtype of their first call."""
    files = {type(m).__module__ for m in module.modules()}
    for name in (f for f in files if f in sys.modules and not f.startswith("torch.")):
        for value in list(vars(sys.modules[name]).values()):
            # A decorator of the library's own keeps the cache in its closure.
            inside = [cell.cell_contents for cell in getattr(value, "__closure__", None) or ()]
            for cache in (value, *inside):
                if getattr(value, "__module__", None) == name and callable(getattr(cache, "cache_clear", None)):
                    cache.cache_clear()
