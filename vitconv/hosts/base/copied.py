"""Copy a network so that nothing in the copy runs what the copy was made of."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CellType, FunctionType, MethodType
from typing import Any

from torch import nn


def copied(module: nn.Module) -> Any:
    """Return a deep copy of a network.

    `copy.deepcopy` takes functions as they are. A forward, or a hook, that was put on one instance and holds it in its
    closure (or among its defaults) would go on with that instance; here it gets the copy's parts in their place.
    """
    memo: dict[int, Any] = {}
    new = copy.deepcopy(module, memo)
    functions: dict[int, FunctionType] = {}
    for part in new.modules():
        for name, value in vars(part).items():
            if isinstance(value, FunctionType):
                part.__dict__[name] = _bound(value, memo, functions)
            elif name.endswith("_hooks") and isinstance(value, dict):
                value.update({key: _bound(hook, memo, functions) for key, hook in value.items()})
    return new


def _bound(value: Any, memo: dict[int, Any], functions: dict[int, FunctionType]) -> Any:
    """Return a value with all that was copied replaced by its copy; functions that hold nothing of it stay."""
    if isinstance(value, FunctionType):
        return _function(value, memo, functions)
    if isinstance(value, MethodType):
        owner = _bound(value.__self__, memo, functions)
        return value if owner is value.__self__ else MethodType(value.__func__, owner)
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
        every = [_bound(x, memo, functions) for x in value]
        return value if all(a is b for a, b in zip(every, value, strict=True)) else type(value)(every)
    if type(value) is dict:
        pairs = {k: _bound(x, memo, functions) for k, x in value.items()}
        return value if all(pairs[k] is x for k, x in value.items()) else pairs
    return memo.get(id(value), value)


def _function(value: FunctionType, memo: dict[int, Any], functions: dict[int, FunctionType]) -> FunctionType:
    if id(value) in functions:
        return functions[id(value)]
    cells = tuple(CellType() for _ in value.__closure__ or ())
    made = FunctionType(value.__code__, value.__globals__, value.__name__, value.__defaults__, cells or None)
    made.__kwdefaults__, made.__dict__ = value.__kwdefaults__, dict(value.__dict__)
    # Known ahead of its cells: one of them may hold the function itself.
    functions[id(value)] = made
    changed = False
    for old, cell in zip(value.__closure__ or (), cells, strict=True):
        try:
            held = old.cell_contents
        except ValueError:  # nothing is in it yet
            continue
        cell.cell_contents = _bound(held, memo, functions)
        changed = changed or not (cell.cell_contents is held or cell.cell_contents is made)
    for name in ("__defaults__", "__kwdefaults__"):
        held = getattr(value, name)
        setattr(made, name, _bound(held, memo, functions))
        changed = changed or getattr(made, name) is not held
    if not changed:
        functions[id(value)] = value
    return functions[id(value)]


@contextmanager
def ran_of(module: nn.Module, found: list[str]) -> Iterator[None]:
    """Write into `found` the names of the parts of a network that run while the context lasts."""

    def seen(name: str) -> Callable[..., None]:
        return lambda *_: found.append(name)

    handles = [m.register_forward_pre_hook(seen(name)) for name, m in module.named_modules()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
