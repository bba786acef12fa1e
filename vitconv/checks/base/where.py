"""Know which module is running, forward and backward.

torch.utils.module_tracker does the same and imports torch's compiler for it, which takes longer than the checks.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any

from torch import Tensor, nn


class Where:
    """While entered: `name` is that of the innermost module that runs; `backward` is set by who starts the pass.

    Backward, a module starts when the gradient of its result is ready, its parent when that of its input is.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module, self.backward, self.name = module, False, ""
        self._stack: list[str] = []
        self._handles: list[Any] = []
        self._known: dict[int, Tensor] = {}

    def __enter__(self) -> Where:
        for name, part in self.module.named_modules():
            self._handles.append(part.register_forward_pre_hook(self._enter(name)))
            self._handles.append(part.register_forward_hook(self._leave(name)))
        return self

    def __exit__(self, kind: type[BaseException] | None, value: object, trace: TracebackType | None) -> None:
        for handle in self._handles:
            handle.remove()
        self._known.clear()

    def _enter(self, name: str) -> Callable[..., None]:
        def hook(_module: nn.Module, args: tuple[Any, ...]) -> None:
            self._mark(args, self.name)
            self._stack.append(self.name)
            self.name = name

        return hook

    def _leave(self, name: str) -> Callable[..., None]:
        def hook(_module: nn.Module, _args: tuple[Any, ...], output: Any) -> None:
            self._mark(output, name)
            self.name = self._stack.pop() if self._stack else ""

        return hook

    def _mark(self, value: Any, name: str) -> None:
        # A tensor belongs to the first to mark it: the innermost module that gives it.
        for t in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(t, Tensor) and t.requires_grad and id(t) not in self._known:
                self._known[id(t)] = t
                t.register_hook(self._at(name))

    def _at(self, name: str) -> Callable[[Tensor], None]:
        def hook(_gradient: Tensor) -> None:
            self.name = name

        return hook
