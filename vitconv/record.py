"""`dataclass(frozen=True)` for modules that every command imports, made in a sixth of the time.

The standard decorator compiles six functions per class, 0.5 ms; the seventy classes behind `convert` would be a third
of its start-up. Here one function is compiled, when the first instance is made, and the others are shared. To a type
checker, to `dataclasses.replace`, `fields` and `asdict`, and to a reader it is the standard one.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import MISSING, FrozenInstanceError
from typing import TYPE_CHECKING, Any

__all__ = ["dataclass"]

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(*, frozen: bool, eq: bool = True) -> Callable[[type], type]:
        """Make a class whose instances are values: fields, defaults and `__post_init__` as in `dataclasses.dataclass`.

        Raises:
            TypeError: the class is not to be frozen; use the standard decorator.
        """
        if not frozen:
            raise TypeError("dataclass(frozen=False): expected a class that is not changed; use dataclasses.dataclass")
        return _compared if eq else _made


# Fields only: what is left out is what takes the time.
_fields = dataclasses.dataclass(init=False, repr=False, eq=False)


def _made(cls: Any) -> Any:
    cls = _fields(cls)
    cls.__init__ = _first(cls)
    cls.__setattr__ = _unchanged
    cls.__delattr__ = _unchanged
    if "__repr__" not in cls.__dict__:
        cls.__repr__ = _shown
    return cls


def _compared(cls: Any) -> Any:
    cls = _made(cls)
    if "__eq__" not in cls.__dict__:
        cls.__eq__ = _same
    # A class with __eq__ of its own and no __hash__ has __hash__ = None in its __dict__.
    if cls.__dict__.get("__hash__") is None:
        cls.__hash__ = _hashed
    return cls


def _first(cls: Any) -> Callable[..., None]:
    def first(self: Any, *args: Any, **kwargs: Any) -> None:
        if cls.__init__ is first:
            cls.__init__ = _init(cls)
        cls.__init__(self, *args, **kwargs)

    return first


def _init(cls: Any) -> Any:
    scope: dict[str, Any] = {"MISSING": MISSING}
    head, body = ["self"], ["d = self.__dict__"]
    for name, field in cls.__dataclass_fields__.items():
        if field.default_factory is not MISSING:
            scope[f"_make_{name}"] = field.default_factory
            head.append(f"{name}=MISSING")
            body.append(f"d[{name!r}] = _make_{name}() if {name} is MISSING else {name}")
            continue
        if field.default is not MISSING:
            scope[f"_default_{name}"] = field.default
            head.append(f"{name}=_default_{name}")
        else:
            head.append(name)
        body.append(f"d[{name!r}] = {name}")
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    # Names of fields, which Python has already parsed; nothing that a user or a file says.
    exec(f"def __init__({', '.join(head)}):\n " + "\n ".join(body), scope)  # noqa: S102
    made = scope["__init__"]
    made.__qualname__ = f"{cls.__qualname__}.__init__"
    return made


def _values(record: Any) -> tuple[Any, ...]:
    return tuple(getattr(record, name) for name, field in record.__dataclass_fields__.items() if field.compare)


def _same(self: Any, other: object) -> Any:
    return _values(self) == _values(other) if other.__class__ is self.__class__ else NotImplemented


def _hashed(self: Any) -> int:
    return hash(_values(self))


def _shown(self: Any) -> str:
    shown = (f"{n}={getattr(self, n)!r}" for n, field in self.__dataclass_fields__.items() if field.repr)
    return f"{self.__class__.__qualname__}({', '.join(shown)})"


def _unchanged(_self: Any, name: str, *_value: Any) -> None:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")
