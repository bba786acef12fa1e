"""The training that is planned: what the checks hold the network against."""

from __future__ import annotations

import math
from dataclasses import dataclass


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
