"""Init schemes of Vision Transformers: one file each; drawing, the audit and coverage of an init function.

`apply`, `draw`, `audit_module`, `audit_tensors` and `coverage` are loaded when they are first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitconv.inits.audit.audit import audit_module as audit_module
    from vitconv.inits.audit.audit import audit_tensors as audit_tensors
    from vitconv.inits.base.coverage import coverage as coverage
    from vitconv.inits.base.draw import draw as draw
    from vitconv.inits.base.live import apply as apply

_HOME = {
    "apply": "vitconv.inits.base.live",
    "audit_module": "vitconv.inits.audit.audit",
    "audit_tensors": "vitconv.inits.audit.audit",
    "coverage": "vitconv.inits.base.coverage",
    "draw": "vitconv.inits.base.draw",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'vitconv.inits' has no attribute {name!r}")
