"""Verification against the bare passes it is made of, measured in the same run; memory as stated and as it was."""

from __future__ import annotations

import gc
import resource
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitconv.hosts.base.host import Built
from vitconv.parity.pair import KEEP_BYTES, Pair, pair_of
from vitconv.parity.precision import precision_of, running
from vitconv.parity.resolve import asked, resolve
from vitconv.parity.side import Side, module_of
from vitconv.parity.tolerance import PROFILES
from vitconv.parity.trace import Trace, cotangent_of
from vitconv.parity.verify import run_stages

# Bytes of a float64.
_DOUBLE = 8


@dataclass(frozen=True)
class Pass:
    """One pass that a stage made: a side's label, its network, precision, set of weights, images, with gradients."""

    side: Side
    precision: str
    weights: str
    images: Tensor
    backward: bool

    @property
    def key(self) -> tuple[Any, ...]:
        """What decides how long it takes."""
        return self.side.label, self.precision, tuple(self.images.shape), self.backward


@dataclass
class Counted(Pair):
    """A pair that remembers every pass."""

    passes: list[Pass] = field(default_factory=list)

    def run(self, side: Side, inputs: str, precision: str, of: str, **more: Any) -> Trace:
        """Run, and remember the pass if one was made."""
        before = self.runs
        done = super().run(side, inputs, precision, of, **more)
        if self.runs > before:
            given = more.get("images")
            images = self.images[inputs] if given is None else given
            self.passes.append(Pass(side, precision, of, images, more.get("backward", True)))
        return done


@dataclass(frozen=True)
class Cost:
    """A stage: its wall clock, and that of its passes run bare, in seconds."""

    stage: str
    passes: int
    wall: float
    bare: float


@dataclass(frozen=True)
class Measured:
    """What the benchmark found: stages, the search for the cause, and growth of memory in bytes."""

    verdict: str
    costs: tuple[Cost, ...]
    search: float
    found: tuple[str, ...]
    stated: int
    peak: int

    @property
    def verify(self) -> float:
        """Seconds of one verification: every stage but the search."""
        return sum(c.wall for c in self.costs)


def bench(
    model: str,
    options: Sequence[str],
    eps: float,
    precisions: Sequence[str],
    repeat: int,
    told: Callable[[str], None] = lambda _: None,
) -> Measured:
    """Verify timm's `model` against itself with another eps in the blocks, and time the same passes bare.

    Args:
        model: name of timm's model.
        options: arguments of timm's, as NAME=VALUE.
        eps: of the candidate's norms.
        precisions: of the stage of numerics.
        repeat: rounds of the bare passes; the fastest counts, and so the ratio is not flattered.
        told: hears what is measured.
    """
    a, b = resolve(f"timm:{model}", f"timm:{model}", ask_a=asked(options), ask_b=asked(options))
    b = _with_eps(b, eps)
    plain = pair_of(a, b)
    pair = Counted(plain.a, plain.b, plain.images, plain.device, plain.seed)
    stated = stated_bytes(pair)
    gc.collect()
    start = _resident()
    marks: list[int] = []
    pair.progress = lambda done, _total, what: told(f"{done + 1}: {what}")
    result = run_stages(pair, precisions, frozenset(), PROFILES["default"])
    peak = _peak() - start
    for s in result.stages:
        marks.append((marks[-1] if marks else 0) + s.runs)
    told("bare passes")
    bare = _bare(pair, repeat)
    costs = []
    for j, s in enumerate(result.stages):
        if s.why_skipped is None and s.key not in ("why", "accounting"):
            mine = pair.passes[marks[j] - s.runs : marks[j]]
            costs.append(Cost(s.key, len(mine), s.seconds, sum(bare[p.key] for p in mine)))
    found = () if result.cause is None else tuple(result.cause.found)
    return Measured(result.verdict, tuple(costs), result.stage("why").seconds, found, stated, peak)


def _with_eps(side: Side, eps: float) -> Side:
    import dataclasses

    module = side.built.module
    for name, norm in module.named_modules():
        if name.startswith("blocks.") and isinstance(norm, torch.nn.LayerNorm):
            norm.eps = eps
    built = side.host.describe(module, side.ask)
    # Made anew it would have timm's eps.
    return dataclasses.replace(side, built=built, facts=built.facts, remade=False)


def _bare(pair: Counted, repeat: int) -> dict[tuple[Any, ...], float]:
    """Return seconds of each kind of pass without taps, gaps or bridges: the fastest of `repeat`, after a first one."""
    out: dict[tuple[Any, ...], float] = {}
    for p in pair.passes:
        if p.key in out:
            continue
        built = module_of(p.side, dtype=precision_of(p.precision).dtype, weights=pair.weights(p.side, p.weights))
        times = [_timed(built, p) for _ in range(repeat + 1)]
        out[p.key] = min(times[1:])
    return out


def _timed(built: Built, p: Pass) -> float:
    x = p.images.to(next(built.module.parameters()).dtype).requires_grad_(p.backward)
    built.module.zero_grad(set_to_none=True)
    started = time.perf_counter()
    with running(p.precision, "cpu") as mode, torch.set_grad_enabled(p.backward):
        with mode.forward():
            y = built.run(built.module, x)
        if p.backward:
            y.backward(cotangent_of(y.shape, 0).to(y.dtype))
    return time.perf_counter() - started


def stated_bytes(pair: Pair) -> int:
    """Return what a verification is expected to take beyond the two networks as they are made, ahead of running it.

    Networks in float64 with their gradients, one per side and the baseline in other code; canonical weights in float64;
    float64 traces that are kept; and what one backward pass of the largest batch keeps, which is counted in one forward
    pass.
    """
    parameters = sum(p.numel() for p in pair.a.built.module.parameters())
    networks = 3 * 2 * parameters * _DOUBLE
    canonical = 3 * parameters * _DOUBLE
    largest = max(pair.images.values(), key=len)
    saved = [0]

    def pack(x: Tensor) -> Tensor:
        if not isinstance(x, torch.nn.Parameter):
            saved[0] += x.numel() * _DOUBLE
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        x = largest.to(next(pair.a.built.module.parameters()).dtype)
        pair.a.built.run(pair.a.built.module, x)
    # Values and gradients of taps; the saved values are at least as many.
    traces = 2 * len(pair.sets) * (len(pair.images) * parameters * _DOUBLE + 2 * saved[0])
    return networks + canonical + min(traces, KEEP_BYTES) + 2 * saved[0]


def _peak() -> int:
    # In kilobytes on Linux, in bytes on macOS.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _resident() -> int:
    status = Path("/proc/self/statm")
    if not status.is_file():
        return _peak()
    return int(status.read_text(encoding="ascii").split()[1]) * resource.getpagesize()
