"""Autocast that a network switches on by itself: in which module, to which dtype, and whether torch lets it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

_ASKED = "_vitconv_asked"


@dataclass(frozen=True)
class Autocast:
    """A region under autocast.

    `module`: where it is entered; `device`: whose autocast it is; `dtype`: such as bfloat16; `on`: False where torch
    leaves it off, as that of CUDA on a machine without.
    """

    module: str
    device: str
    dtype: str
    on: bool


@contextmanager
def inside(module: nn.Module) -> Iterator[list[str]]:
    """Yield the stack of the names of the modules that run; the network itself goes by its class."""
    stack: list[str] = []

    def enter(name: str) -> Callable[..., None]:
        return lambda *_: stack.append(name)

    handles: list[Any] = []
    for name, part in module.named_modules():
        handles.append(part.register_forward_pre_hook(enter(name or type(module).__name__)))
        handles.append(part.register_forward_hook(lambda *_: (stack.pop(), None)[1]))
    try:
        yield stack
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def remembering() -> Iterator[None]:
    """Let every autocast that is made meanwhile remember whether it was to be on: torch forgets, without CUDA.

    Those that decorate a function are made when its module is imported.
    """
    made = torch.amp.autocast_mode.autocast.__init__

    def init(self: Any, device_type: str, dtype: Any = None, enabled: bool = True, cache_enabled: Any = None) -> None:
        made(self, device_type, dtype, enabled, cache_enabled)
        setattr(self, _ASKED, bool(enabled))

    with patch.object(torch.amp.autocast_mode.autocast, "__init__", init):
        yield


def asked(autocast: Any) -> bool:
    """Return whether an autocast was to be on, as far as is known."""
    return bool(getattr(autocast, _ASKED, autocast._enabled))  # noqa: SLF001


@contextmanager
def watched_autocasts(module: nn.Module, found: list[Autocast], *, off: bool = False) -> Iterator[None]:
    """Write every autocast that the network switches on into `found`; with `off` none of them takes effect."""
    enter = torch.amp.autocast_mode.autocast.__enter__

    def entered(self: Any) -> Any:
        was = self._enabled
        if stack and asked(self):
            found.append(Autocast(stack[-1], self.device, str(self.fast_dtype).removeprefix("torch."), was))
            self._enabled = was and not off
        try:
            return enter(self)
        finally:
            self._enabled = was

    with (
        inside(module) as stack,
        remembering(),
        patch.object(torch.amp.autocast_mode.autocast, "__enter__", entered),
    ):
        yield
