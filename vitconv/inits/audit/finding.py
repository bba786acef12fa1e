"""What an audit says: one finding per kind, with the tensors it speaks of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["info", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding.

    Attributes:
        id: its name, such as `not-finite`.
        level: fail: do not train or use it so; warn: look at it; info: worth knowing.
        where: canonical names.
        text: what was found, with figures.
        advice: what to do.
    """

    id: str
    level: Level
    where: tuple[str, ...]
    text: str
    advice: str = ""
