"""Name the random operators of a run, and the modules that call them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from vitconv.hosts.base.autocasts import inside
from vitconv.hosts.base.host import Built


class _Watch(TorchDispatchMode):
    def __init__(self, stack: list[str], found: dict[str, str]) -> None:
        super().__init__()
        self.stack, self.found = stack, found

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # Outside of the network the random numbers are the verifier's own.
        if self.stack and torch.Tag.nondeterministic_seeded in func.tags and _draws(func, args, kwargs or {}):
            self.found.setdefault(self.stack[-1], str(func).removeprefix("aten.").partition(".")[0])
        return func(*args, **(kwargs or {}))


def _draws(func: Any, args: Any, kwargs: Any) -> bool:
    """Tell whether a call of a random operator draws at all: fused attention without dropout, say, does not."""
    given = {a.name: a.default_value for a in func._schema.arguments if a.has_default_value()}  # noqa: SLF001
    given |= dict(zip((a.name for a in func._schema.arguments), args, strict=False)) | kwargs  # noqa: SLF001
    return given.get("dropout_p", 1) != 0 and not any(given.get(n) is False for n in ("train", "training"))


@contextmanager
def watching(built: Built, found: dict[str, str]) -> Iterator[None]:
    """Write {module name: random operator} into `found` while the context lasts."""
    with inside(built.module) as stack, _Watch(stack, found):
        yield
