"""Tell which random site is alive, from runs that should have been equal."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from vitconv.parity.faults.error import Left


def first_random(runs: Sequence[Left]) -> str | None:
    """Return the first tap whose value is not the same in all runs of one input, output if it is that; None: equal."""
    first, *others = runs
    for name, value in first.taps.items():
        if any(name in r.taps and not _same(r.taps[name], value) for r in others):
            return name
    return "output" if any(not _same(r.output, first.output) for r in others) else None


def name_random(runs: Sequence[Left]) -> str | None:
    """Return the catalogue's name of the random site that shows first; None: equal runs, or it is random otherwise.

    runs: of one input, batch of 2 at least. Dropout leaves exact zeros in what it acts on. Dropped paths come and go by
    whole images: two runs differ in some images and are equal to the bit in others, or a block's end differs while
    both of its branches are equal.
    """
    tap = first_random(runs)
    if tap is None:
        return None
    kind = tap.split(".")[-1] if tap.count(".") == 2 else "block" if tap.startswith("blocks.") else tap
    values = [r.taps.get(tap, r.output) for r in runs]
    if kind == "embed":
        return "dropout-embed-alive" if _zeros(values) else None
    if kind == "attn":
        return "dropout-projection-alive" if _zeros(values) else "dropout-attention-alive"
    if kind == "mlp":
        if _zeros(values):
            return "dropout-mlp-alive"
        return "drop-path-alive" if _by_image(values) else "dropout-mlp-hidden-alive"
    if kind == "block":
        return "drop-path-alive"
    # What is random behind the classifier, or in the norm ahead of it, is no dropout between them.
    behind = tap == "output" and "head" in runs[0].taps
    return None if behind or kind == "norm" or (kind == "pool" and not _zeros(values)) else "dropout-head-alive"


def _same(a: Tensor, b: Tensor) -> bool:
    """Whether two values are equal; NaN, which no number is equal to, is no sign of randomness where both have it."""
    return a.shape == b.shape and torch.allclose(a, b, rtol=0.0, atol=0.0, equal_nan=True)


def _zeros(values: Sequence[Tensor]) -> bool:
    """Whether elements are exactly zero here and not there."""
    zero = torch.stack([v == 0 for v in values])
    return bool((zero.any(0) & ~zero.all(0)).any())


def _by_image(values: Sequence[Tensor]) -> bool:
    """Whether some image is equal to the bit in two runs that differ in another one."""
    for i, one in enumerate(values):
        for two in values[i + 1 :]:
            same = (one == two).flatten(1).all(1)
            if bool(same.any()) and not bool(same.all()):
                return True
    return False
