"""The training that is planned: what the checks hold the network against."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class Plan:
    """A training: AdamW, a linear warm-up, then a cosine to zero.

    Attributes:
        lr: peak learning rate.
        betas, eps, decay: of AdamW; biases, norms, tokens and positions are not decayed.
        warmup, steps: in optimiser steps.
        batch: images per step.
        smoothing: of the labels.
        clip: largest norm of the gradient, or 0 for none.
        precision: `fp32`, `amp-fp16` or `amp-bf16`.
        mixup: alpha of mixup, 0 for none; cutmix: the same.
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

    def lr_at(self, step: int) -> float:
        """Return the learning rate of a step, counted from 0."""
        if step < self.warmup:
            return self.lr * (step + 1) / self.warmup
        left = (step - self.warmup) / max(1, self.steps - self.warmup)
        return self.lr * 0.5 * (1.0 + math.cos(math.pi * min(1.0, left)))


# Trainings by name. The first public report: AdamW 0.9/0.95, lr 1e-4 x 4096/256 by the scaling rule, warm-up and
# cosine, mixup, cutmix, label smoothing; decay as in the recipe it follows (He et al., MAE, 2022, table 11).
PLANS: Mapping[str, Plan] = MappingProxyType(
    {"first-report": Plan(lr=1.6e-3, decay=0.3, smoothing=0.1, mixup=0.8, cutmix=1.0, batch=32)}
)
