"""Run a network as CUDA autocast to half precision would, and keep how near every operator comes to the limit.

Products are computed in float32 and rounded once, as tensor cores do; a CPU's own half-precision products would take
fourteen times as long. What stands between is torch's, under CUDA autocast's dtype policy.
"""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from vitconv.checks.base.passes import Batch, loss_of
from vitconv.checks.base.where import Where
from vitconv.hosts.base.host import Built
from vitconv.parity.precision import precision_of, running
from vitconv.parity.products import run_rounded

LARGEST = 65504.0
SCALES = (65536.0, 1024.0, 1.0)


@dataclass(frozen=True)
class Step:
    """One operator of one module: the largest |value| of its results, and the share that is not finite.

    `first`: its inputs are finite and its result is not, so it is where a number runs out. `line`: where in the
    network's own source it was called, if it is `first`.
    """

    op: str
    module: str
    backward: bool
    dtype: str
    largest: float
    lost: float = 0.0
    first: bool = False
    line: str = ""

    def __str__(self) -> str:
        at = f" ({self.line})" if self.line else ""
        return f"{self.op} in {self.module or 'the network'}{', backward' if self.backward else ''}{at}"


@dataclass(frozen=True)
class Halves:
    """What the passes left.

    `forward`: the operators of the forward pass. `backward`: {loss scale: operators of the backward pass}. `loss`: in
    that precision; `output`: whether every output is finite, and the share of it that is.
    """

    precision: str
    forward: tuple[Step, ...]
    backward: dict[float, tuple[Step, ...]]
    loss: float
    finite: bool


def run_out(steps: Sequence[Step]) -> Step | None:
    """Return the first operator whose result is not finite although its inputs are, or None."""
    return next((s for s in steps if s.first), None)


def half_pass(built: Built, batch: Batch, precision: str, scales: Sequence[float] = SCALES) -> Halves:
    """Run forward once in a half precision, and backward with each loss scale.

    Args:
        built: the network, in float32; it is left as it was, gradients cleared.
        batch: images and labels.
        precision: `amp-fp16`, `amp-bf16`, or `fp32` for what autocast off would give.
        scales: three loss scales, largest first. The middle one is run; the smallest only if that runs out; what the
            largest gives follows from the middle one.
    """
    images, labels = batch
    module = built.module
    backward: dict[float, tuple[Step, ...]] = {}
    x = images.detach().clone().requires_grad_(images.is_floating_point())
    with running(precision, "cpu") as mode, Where(module) as where:
        watch = Watch(where, precision_of(precision).autocast)
        with watch:
            with mode.forward():
                output = built.run(module, x)
            loss = loss_of(output, labels)
        forward = tuple(watch.steps)
        largest, middle, smallest = scales
        for scale in (middle, smallest) if loss.requires_grad else ():
            module.zero_grad(set_to_none=True)
            watch.restart()
            where.backward = True
            with watch:
                (loss * scale).backward(retain_graph=scale != smallest)
            backward[scale] = tuple(watch.steps)
            if run_out(backward[scale]) is None:
                break
        # A backward pass is linear in the loss, so another scale need not be run.
        if backward:
            backward = {largest: scaled(backward[middle], largest / middle), **backward}
    module.zero_grad(set_to_none=True)
    return Halves(precision, forward, backward, float(loss.detach()), bool(output.isfinite().all()))


def scaled(steps: Sequence[Step], factor: float) -> tuple[Step, ...]:
    """Return the steps of a backward pass whose loss is `factor` times as large."""
    found, over = [], False
    for s in steps:
        limit = LARGEST if s.dtype == "float16" else float(torch.finfo(torch.float32).max)
        first = s.first or (s.largest * factor > limit and not over)
        over = over or first
        found.append(replace(s, largest=s.largest * factor, first=first))
    return tuple(found)


class Watch(TorchDispatchMode):
    """Watch the results of every operator; compute products of half-precision numbers in float32."""

    def __init__(self, where: Where | None = None, low: torch.dtype | None = torch.float16) -> None:
        super().__init__()
        self.where, self.low, self.steps = where, low, list[Step]()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Else torch imports its compiler, ten seconds, to keep it from looking at this class.
        return False

    def restart(self) -> None:
        """Forget what was seen."""
        self.steps = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.removeprefix("aten::")  # noqa: SLF001
        out = run_rounded(func, name, self.low, args, kwargs or {})
        if self.where is not None and not func.is_view:
            self._look(name, args, out)
        return out

    def _look(self, name: str, args: Any, out: Any) -> None:
        assert self.where is not None
        results = [t for t in (out if isinstance(out, (tuple, list)) else (out,)) if isinstance(t, Tensor)]
        for t in results:
            if not t.is_floating_point() or not t.numel() or t.dtype == torch.float64 or "empty" in name:
                continue
            low, high = (float(v) for v in torch.aminmax(t.detach()))
            largest = max(abs(low), abs(high))
            finite = largest <= float(torch.finfo(t.dtype).max)
            lost, first, line = 0.0, False, ""
            if not finite:
                lost = float((~t.isfinite()).float().mean())
                first = all(bool(x.isfinite().all()) for x in _floats(args))
                values = t[t.isfinite()]
                largest = float(values.abs().max()) if values.numel() else float("inf")
                line = _line() if first and not self.where.backward else ""
            self.steps.append(
                Step(name, self.where.name, self.where.backward, _short(t.dtype), largest, lost, first, line)
            )


def _floats(tree: Any) -> list[Tensor]:
    found: list[Tensor] = []
    tree_map_only(Tensor, lambda t: found.append(t) if t.is_floating_point() else None, tree)
    return found


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _line() -> str:
    """Return the innermost line of the stack that is neither torch's nor of this package's machinery."""
    own = str(Path(__file__).parents[2])
    for frame in reversed(traceback.extract_stack()):
        inner = frame.filename.startswith((f"{own}/checks", f"{own}/parity", f"{own}/hosts"))
        if "/torch/" not in frame.filename and not inner and frame.line:
            return f"{Path(frame.filename).name}:{frame.lineno}: {frame.line}"
    return ""
