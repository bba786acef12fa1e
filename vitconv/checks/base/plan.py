"""The training that is planned: what the checks hold the network against."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from vitconv.errors import UsageError

_PRECISIONS = ("fp32", "amp-fp16", "amp-bf16")


@dataclass(frozen=True)
class Plan:
    """A training: AdamW, a linear warm-up, then a cosine to zero.

    Attributes:
        lr: peak learning rate.
        betas, eps, decay: of AdamW; biases, norms, tokens and positions are not decayed, unless `no_decay` says what.
        warmup, steps: in optimiser steps.
        batch: images per step.
        smoothing: of the labels.
        clip: largest norm of the gradient, or 0 for none.
        precision: `fp32`, `amp-fp16` or `amp-bf16`.
        mixup: alpha of mixup, 0 for none; cutmix: the same.
        no_decay: names, or parts of names, of what is not decayed, in place of the roles; see `layout.groups.listed`.
        seed: of the order of the examples and of all that the network draws.
    """

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    decay: float = 0.05
    warmup: int = 40
    steps: int = 300
    batch: int = 4
    smoothing: float = 0.0
    clip: float = 0.0
    precision: str = "amp-fp16"
    mixup: float = 0.0
    cutmix: float = 0.0
    seed: int = 0
    no_decay: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what is no training.

        Raises:
            UsageError: a value is not of its kind, or out of its range.
        """
        pair = self.betas if isinstance(self.betas, (tuple, list)) else ()
        if len(pair) != 2 or not all(_number(b) and 0 <= b < 1 for b in pair):
            raise _wrong("betas", self.betas, "two numbers from 0 to 1, 1 left out")
        object.__setattr__(self, "betas", tuple(map(float, pair)))
        for name in ("lr", "eps", "decay", "clip", "mixup", "cutmix", "smoothing"):
            value, above = getattr(self, name), name in ("lr", "eps")
            if not _number(value) or value < 0 or (above and value == 0) or (name == "smoothing" and value >= 1):
                least = "a number above 0" if above else "a number of at least 0"
                raise _wrong(name, value, f"{least} and below 1" if name == "smoothing" else least)
        for name, lowest in (("warmup", 0), ("steps", 1), ("batch", 1), ("seed", 0)):
            value = getattr(self, name)
            if not _number(value) or value != int(value) or not lowest <= value < 2**63:
                raise _wrong(name, value, f"a whole number of at least {lowest}")
            object.__setattr__(self, name, int(value))
        names = [self.no_decay] if isinstance(self.no_decay, str) else self.no_decay
        if not isinstance(names, (tuple, list)) or not all(isinstance(one, str) and one for one in names):
            raise _wrong("no_decay", self.no_decay, "names or parts of names, as [bias, norm, cls_token]")
        object.__setattr__(self, "no_decay", tuple(names))
        if self.precision not in _PRECISIONS:
            raise _wrong("precision", self.precision, f"one of {', '.join(_PRECISIONS)}")

    def lr_at(self, step: int) -> float:
        """Return the learning rate of a step, counted from 0."""
        if step < self.warmup:
            return self.lr * (step + 1) / self.warmup
        left = (step - self.warmup) / max(1, self.steps - self.warmup)
        return self.lr * 0.5 * (1.0 + math.cos(math.pi * min(1.0, left)))


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _wrong(name: str, found: Any, expected: str) -> UsageError:
    return UsageError(f"training: {name}: found {str(found)[:60]!r}; expected {expected}")


# Trainings by name. The first public report: AdamW 0.9/0.95, lr 1e-4 x 4096/256 by the scaling rule, warm-up and
# cosine, mixup, cutmix, label smoothing; decay as in the recipe it follows (He et al., MAE, 2022, table 11).
PLANS: Mapping[str, Plan] = MappingProxyType(
    {"first-report": Plan(lr=1.6e-3, decay=0.3, smoothing=0.1, mixup=0.8, cutmix=1.0, batch=32)}
)
