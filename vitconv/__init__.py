"""Move Vision Transformer checkpoints between codebases, and prove that both sides compute the same function.

Importing the package imports nothing else: public names are loaded when they are first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitconv.errors import VitconvError as VitconvError

__version__ = "0.1.0"

_HOME = {
    "VitconvError": "vitconv.errors",
}

__all__ = ["VitconvError", "__version__"]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'vitconv' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
