"""Taps: where in a foreign network the value of a canonical name passes, and how to catch it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from vitconv.errors import Refused

Change = Callable[[str, Tensor], Tensor | None]


@dataclass(frozen=True)
class Tap:
    """The value passes at the input or output of `module`.

    `index` picks out of a tuple or list (nested ones too), `token` picks one token of [b t d]: the network computes
    all of them, the value is that of one. `flat` reads a map [b h w d] as the tokens it is.
    """

    module: nn.Module
    side: str
    index: int = 0
    token: int | None = None
    flat: bool = False

    def tensor(self, value: Any) -> Tensor:
        """Return the whole tensor out of what a hook sees.

        Raises:
            Refused: there is none.
        """
        while isinstance(value, (tuple, list)) and value:
            value = value[self.index]
        if not isinstance(value, Tensor):
            raise Refused(f"a tap of {type(self.module).__name__} saw {type(value).__name__}, expected a tensor")
        return value

    def select(self, whole: Tensor) -> Tensor:
        """Return the part of the tensor, or of its gradient, that has the canonical name."""
        if self.flat and whole.dim() == 4:
            whole = whole.flatten(1, 2)
        return whole if self.token is None else whole[:, self.token]


@dataclass
class Recording:
    """What the taps saw, in running order: `raw` holds the whole tensors, which are part of the autograd graph.

    Where a module runs several times in one pass (images one by one, shared blocks) no one value has the name: these
    names are in `repeated`, and neither in `values` nor in `gradients`. `calls` are all names, as often as they came.
    """

    taps: Mapping[str, Tap]
    raw: dict[str, Tensor] = field(default_factory=dict)
    repeated: set[str] = field(default_factory=set)
    calls: list[str] = field(default_factory=list)

    def values(self) -> dict[str, Tensor]:
        """Return {canonical name: value}."""
        return {name: self.taps[name].select(x) for name, x in self.raw.items() if name not in self.repeated}

    def gradients(self) -> dict[str, Tensor]:
        """Return {canonical name: gradient} after a backward pass, of a recording with gradients."""
        once = {name: x for name, x in self.raw.items() if name not in self.repeated}
        return {name: self.taps[name].select(x.grad) for name, x in once.items() if x.grad is not None}


@contextmanager
def recording(taps: Mapping[str, Tap], *, gradients: bool = False, change: Change | None = None) -> Iterator[Recording]:
    """Catch the taps of one forward pass.

    With `gradients` the tensors keep their gradients, for `Recording.gradients`. `change(name, whole)` may return a
    tensor that takes the value's place (of taps that pick out of a tuple: not possible).
    """
    seen = Recording(taps)

    def catch(name: str, value: Any) -> Tensor | None:
        whole = taps[name].tensor(value)
        new = None if change is None else change(name, whole)
        if new is not None and isinstance(value, (tuple, list)) and taps[name].side == "output":
            raise Refused(f"the value of {name} stands in a tuple and cannot be changed")
        seen.calls.append(name)
        if name in seen.raw:
            seen.repeated.add(name)
        seen.raw[name] = whole if new is None else new
        if gradients and seen.raw[name].requires_grad:
            seen.raw[name].retain_grad()
        return new

    def before(name: str) -> Callable[..., Any]:
        def hook(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            new = catch(name, args or list(kwargs.values()))
            if new is None:
                return None
            if not args:
                raise Refused(f"the value of {name} is passed by keyword and cannot be changed")
            return (new, *args[1:]), kwargs

        return hook

    def after(name: str) -> Callable[..., Any]:
        def hook(_module: nn.Module, _args: tuple[Any, ...], output: Any) -> Any:
            return catch(name, output)

        return hook

    handles = [
        tap.module.register_forward_pre_hook(before(name), with_kwargs=True)
        if tap.side == "input"
        else tap.module.register_forward_hook(after(name))
        for name, tap in taps.items()
    ]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()
