"""Move Vision Transformer checkpoints between codebases, and prove that both sides compute the same function.

Importing the package imports nothing else: public names are loaded when they are first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitconv.conversion.convert import convert as convert
    from vitconv.conversion.diff import diff as diff
    from vitconv.conversion.facts import Wishes as Wishes
    from vitconv.conversion.inspect import inspect as inspect
    from vitconv.conversion.prepare import Order as Order
    from vitconv.conversion.prepare import prepare as prepare
    from vitconv.conversion.recognise import recognise as recognise
    from vitconv.conversion.translate import translate as translate
    from vitconv.errors import VitconvError as VitconvError
    from vitconv.io.source import open_checkpoint as open_checkpoint
    from vitconv.layout.semantics import Semantics as Semantics
    from vitconv.loading.load import load as load
    from vitconv.loading.optimizer import load_optimizer as load_optimizer
    from vitconv.parity.verify import verify as verify

__version__ = "0.1.0"

_HOME = {
    "Order": "vitconv.conversion.prepare",
    "Semantics": "vitconv.layout.semantics",
    "VitconvError": "vitconv.errors",
    "Wishes": "vitconv.conversion.facts",
    "convert": "vitconv.conversion.convert",
    "diff": "vitconv.conversion.diff",
    "inspect": "vitconv.conversion.inspect",
    "load": "vitconv.loading.load",
    "load_optimizer": "vitconv.loading.optimizer",
    "open_checkpoint": "vitconv.io.source",
    "prepare": "vitconv.conversion.prepare",
    "recognise": "vitconv.conversion.recognise",
    "translate": "vitconv.conversion.translate",
    "verify": "vitconv.parity.verify",
}

__all__ = [
    "Order",
    "Semantics",
    "VitconvError",
    "Wishes",
    "__version__",
    "convert",
    "diff",
    "inspect",
    "load",
    "load_optimizer",
    "open_checkpoint",
    "prepare",
    "recognise",
    "translate",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'vitconv' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
