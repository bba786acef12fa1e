"""Mixup and cutmix as a training script has them: timm's own, drawing from a state of their own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from vitconv.checks.base.check import Undecided
from vitconv.checks.base.plan import Plan
from vitconv.errors import UsageError


@dataclass
class Mixing:
    """timm's Mixup for a plan: `mix(images, labels)` gives mixed images and soft labels [b o], smoothed.

    timm draws from numpy's global state; here it has one of its own, so that the global one is left as it was.
    """

    mixup: Any
    seed: int
    _state: Any = field(default=None, repr=False)

    def mix(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Mix one batch, [b c height width] and [b]; the images are changed in place."""
        outside = np.random.get_state()
        if self._state is None:
            np.random.seed(self.seed)
        else:
            np.random.set_state(self._state)
        try:
            return self.mixup(images, labels)
        finally:
            self._state = np.random.get_state()
            np.random.set_state(outside)


def mixing(plan: Plan, classes: int) -> Mixing | None:
    """Return the mixing of a plan, or None when it has none.

    Raises:
        Undecided: timm is not installed.
        UsageError: the batch is odd, of which timm mixes one half with the other.
    """
    if plan.mixup <= 0.0 and plan.cutmix <= 0.0:
        return None
    try:
        from timm.data.mixup import Mixup
    except ImportError:
        raise Undecided("mixup and cutmix are timm's, which is not installed; plan mixup=0 and cutmix=0") from None
    if plan.batch % 2:
        raise UsageError(f"mixup and cutmix need an even batch; the plan has {plan.batch}")
    mixup = Mixup(mixup_alpha=plan.mixup, cutmix_alpha=plan.cutmix, label_smoothing=plan.smoothing, num_classes=classes)
    return Mixing(mixup, plan.seed)
