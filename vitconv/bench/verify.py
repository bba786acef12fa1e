"""Verification against the bare passes it is made of, measured in the same run; memory as stated and as it was."""

from __future__ import annotations

import gc
import resource
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitconv.hosts.base.host import Built
from vitconv.parity.pair import Pair, pair_of
from vitconv.parity.plan import plan_of
from vitconv.parity.precision import precision_of, running
from vitconv.parity.resolve import asked, resolve
from vitconv.parity.side import Side, module_of
from vitconv.parity.tolerance import PROFILES
from vitconv.parity.trace import Trace, cotangent_of
from vitconv.parity.verify import run_stages


@dataclass
class Noted(Pair):
    """A pair that notes the passes it makes.

    Attributes:
        passes: the side, the images, the precision, the weights, and hooks and direction where told, per pass.
    """

    passes: list[tuple[Side, Tensor, str, str, dict[str, Any]]] = field(default_factory=list)

    def run(self, side: Side, inputs: str, precision: str, of: str, **more: Any) -> Trace:
        """Run, and note what was run if a pass was made."""
        before = self.runs
        done = super().run(side, inputs, precision, of, **more)
        if self.runs > before:
            given = more.get("images")
            kept: dict[str, Any] = {k: v for k, v in more.items() if k in ("hooks", "backward")}
            self.passes.append((side, self.images[inputs] if given is None else given, precision, of, kept))
        return done

    def bare(self, count: int) -> list[float]:
        """Make the first `count` passes again, bare and one after the other; return the seconds of each.

        Not in turn with the others: a pass that finds the memory that the one before it has just given back takes a
        fifth longer.
        """
        networks: dict[tuple[str, str], Built] = {}
        seconds = []
        for side, images, precision, of, more in self.passes[:count]:
            dtype = precision_of(precision).dtype
            key = (side.label, str(dtype))
            if key not in networks:
                networks[key] = module_of(side, dtype=dtype, weights=self.weights(side, of))
            with ExitStack() as stack:
                # Attention composed of its parts is another pass than that of a fused kernel.
                for hook in more.get("hooks", ()):
                    stack.enter_context(hook(networks[key]))
                seconds.append(_bare(networks[key], images, precision, backward=more.get("backward", True)))
        return seconds


def _bare(built: Built, images: Tensor, precision: str, *, backward: bool) -> float:
    """Return seconds of one pass without taps, gaps or bridges."""
    x = images.to(next(built.module.parameters()).dtype).requires_grad_(backward)
    built.module.zero_grad(set_to_none=True)
    started = time.perf_counter()
    with running(precision, "cpu") as mode, torch.set_grad_enabled(backward):
        with mode.forward():
            y = built.run(built.module, x)
        if backward:
            y.backward(cotangent_of(y.shape, 0).to(y.dtype))
    return time.perf_counter() - started


@dataclass(frozen=True)
class Cost:
    """A stage: its wall clock, and that of its passes made again bare, in seconds."""

    stage: str
    passes: int
    wall: float
    bare: float


@dataclass(frozen=True)
class Measured:
    """What the benchmark found: stages, one verification and its search in seconds, growth of memory in bytes."""

    verdict: str
    costs: tuple[Cost, ...]
    verify: float
    search: float
    found: tuple[str, ...]
    stated: int
    peak: int


def bench(model: str, options: Sequence[str], eps: float, precisions: Sequence[str]) -> Measured:
    """Verify timm's `model` against itself with another eps in the blocks: for time, memory, then beside bare passes.

    Args:
        model: name of timm's model.
        options: arguments of timm's, as NAME=VALUE.
        eps: of the candidate's norms.
        precisions: of the stage of numerics.
    """
    a, b = resolve(f"timm:{model}", f"timm:{model}", ask_a=asked(options), ask_b=asked(options))
    pair = pair_of(a, _with_eps(b, eps))
    stated = plan_of(pair, precisions, frozenset()).nbytes
    noted = Noted(pair.a, pair.b, pair.images, pair.device, pair.seed)
    gc.collect()
    start = _resident()
    result = run_stages(noted, precisions, frozenset(), PROFILES["default"])
    peak = _peak() - start
    # The search makes passes of its own, which are held against one verification, not against bare ones.
    count = sum(s.runs for s in result.stages if s.key != "why")
    bare = noted.bare(count)
    costs, done = [], 0
    for s in result.stages:
        mine = slice(done, done + s.runs)
        done += s.runs
        if s.runs and s.key != "why":
            costs.append(Cost(s.key, s.runs, s.seconds, sum(bare[mine])))
    search = result.stage("why").seconds
    rest = sum(s.seconds for s in result.stages) - search
    found = () if result.cause is None else tuple(result.cause.found)
    return Measured(result.verdict, tuple(costs), rest, search, found, stated, peak)


def _with_eps(side: Side, eps: float) -> Side:
    import dataclasses

    module = side.built.module
    for name, norm in module.named_modules():
        if name.startswith("blocks.") and isinstance(norm, torch.nn.LayerNorm):
            norm.eps = eps
    built = side.host.describe(module, side.ask)
    # Made anew it would have timm's eps.
    return dataclasses.replace(side, built=built, facts=built.facts, remade=False)


def _peak() -> int:
    # What the kernel counts of a process includes what its parent held when it was made; this line does not.
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.is_file() else []
    for line in lines:
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    # In kilobytes on Linux, in bytes on macOS.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _resident() -> int:
    status = Path("/proc/self/statm")
    if not status.is_file():
        return _peak()
    return int(status.read_text(encoding="ascii").split()[1]) * resource.getpagesize()
