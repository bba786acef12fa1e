"""What a verification will take, told before it runs: passes, and the memory at its peak."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vitconv.parity.pair import KEEP_BYTES, Pair

# Bytes of a float64.
_DOUBLE = 8


@dataclass(frozen=True)
class Plan:
    """The plan.

    Attributes:
        passes: forward (and backward) passes of the stages, when nothing is off; the search for a cause has its own.
        parts: {what: bytes}, all of it on top of the two networks as they were made; {}: not known.
        blockwise: whether the values inside blocks are dropped and computed again.
    """

    passes: int
    parts: Mapping[str, int]
    blockwise: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes at the peak, at most."""
        return sum(self.parts.values())

    @property
    def sentence(self) -> str:
        """Return the plan in one line."""
        if not self.parts:
            return f"{self.passes} passes planned; how much memory they take is not known"
        largest = max(self.parts, key=lambda name: self.parts[name])
        how = "block by block" if self.blockwise else "--blockwise takes less"
        size = f"{_words(self.nbytes)} of memory at the peak ({_words(self.parts[largest])} for {largest}; {how})"
        return f"{self.passes} passes planned, and at most {size}"


def plan_of(pair: Pair, precisions: Sequence[str], skip: frozenset[str]) -> Plan:
    """Return the plan of a pair on the bench; it takes one forward pass of the largest batch.

    Networks stand in float64 with their gradients: one per side, and the baseline in other code. The search for a cause
    runs the reference ViT beside them, all of it at once, block by block or not.
    """
    parameters = _DOUBLE * sum(p.numel() for p in pair.a.built.module.parameters())
    whole, taps = _kept_for_backward(pair)
    passing = whole // max(_depth(pair), 1) + taps if pair.blockwise else whole
    # Values and gradients of taps are kept; what a backward pass keeps is at least as much.
    traces = len(pair.sets) * 2 * len(pair.images) * (parameters + (taps if pair.blockwise else whole))
    parts = {
        "networks and gradients": 6 * parameters,
        "canonical weights": 3 * parameters,
        "traces": min(traces, KEEP_BYTES) + 2 * (parameters + taps),
        # The values, and their gradients on the way back.
        "values between forward and backward": 2 * passing,
    }
    if "why" not in skip:
        parts["the search for a cause"] = 4 * parameters + (2 * whole if pair.blockwise else 0)
    return Plan(passes(pair, precisions, skip), parts, pair.blockwise)


def passes(pair: Pair, precisions: Sequence[str], skip: frozenset[str]) -> int:
    """Return how many passes the stages will take, when nothing is off."""
    sets, images = len(pair.sets), len(pair.images)
    runs = 0 if "sanity" in skip else 2 * (sets + 3)
    if "function" not in skip:
        runs += 2 * sets * images - (0 if "sanity" in skip else 2 * sets)
    if "numerics" not in skip:
        runs += sum(2 * images + 5 for p in precisions if p != "fp64" and f"numerics-{p}" not in skip)
    return runs


def _depth(pair: Pair) -> int:
    return sum(1 for name in pair.a.built.taps if name.startswith("blocks.") and name.count(".") == 1)


def _kept_for_backward(pair: Pair) -> tuple[int, int]:
    """Return bytes that one backward pass of the largest batch keeps in float64, and those of the stream alone."""
    largest = max(pair.images.values(), key=len)
    built = pair.a.built
    saved, stream = [0], [0]

    def pack(x: Tensor) -> Tensor:
        if not isinstance(x, torch.nn.Parameter):
            saved[0] += x.numel() * _DOUBLE
        return x

    def passed(_module: object, _args: object, output: object) -> None:
        if isinstance(output, Tensor):
            stream[0] += output.numel() * _DOUBLE

    ends = [t.module for n, t in built.taps.items() if n.startswith("blocks.") and n.count(".") == 1]
    handles = [m.register_forward_hook(passed) for m in ends]
    try:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x), torch.random.fork_rng(devices=[]):
            built.run(built.module, largest.to(next(built.module.parameters()).dtype))
    finally:
        for handle in handles:
            handle.remove()
    return saved[0], stream[0]


def _words(nbytes: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6)):
        if nbytes >= size:
            return f"{nbytes / size:.3g} {unit}"
    return f"{nbytes / 1e3:.3g} kB"
