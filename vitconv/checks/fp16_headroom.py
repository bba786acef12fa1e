"""Which operator runs out of half precision's range first, forward and backward"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from vitconv.checks.base.check import Check, Finding, Limits, NotApplicable
from vitconv.checks.base.context import Context
from vitconv.checks.base.halves import LARGEST, Step, run_out


def run(context: Context, limits: Limits) -> Iterator[Finding]:
    """Name the first operator that runs out, or the one that comes nearest."""
    if not context.plan.precision.endswith("fp16"):
        raise NotApplicable(f"the plan is {context.plan.precision}, whose range is that of float32")
    seen = context.halves
    yield _forward(seen.forward, limits)
    yield from _backward(context, limits)


def nearest(steps: Sequence[Step]) -> Step | None:
    """Return the operator with the largest half-precision result."""
    halves = [s for s in steps if s.dtype == "float16"]
    return max(halves, key=lambda s: s.largest, default=None)


def _forward(steps: Sequence[Step], limits: Limits) -> Finding:
    first = run_out(steps)
    curves = {"largest / 65504": tuple((float(i), s.largest / LARGEST) for i, s in enumerate(_halves(steps)))}
    axes = ("operator, in running order", "share of the range")
    if first is not None:
        return Finding(
            "error",
            f"forward: {first} gives {first.lost:.3%} infinite or NaN from finite inputs; it is the first to run out"
            + ("" if first.dtype == "float16" else f", and it is {first.dtype}"),
            {"op": first.op, "module": first.module, "line": first.line, "lost": first.lost},
            _where(first),
            curves=curves,
            axes=axes,
        )
    top = nearest(steps)
    if top is None:
        return Finding("ok", "forward: nothing is computed in half precision")
    share = top.largest / LARGEST
    return Finding(
        "error" if share > limits["error"] else "warn" if share > limits["warn"] else "ok",
        f"forward: {top} comes nearest, {top.largest:.4g} of 65504: {share:.2%} (limits {limits['warn']:.0%}, "
        f"{limits['error']:.0%})",
        {"op": top.op, "module": top.module, "largest": top.largest, "share": share},
        _where(top) if share > limits["warn"] else (),
        curves=curves,
        axes=axes,
    )


def _backward(context: Context, limits: Limits) -> Iterator[Finding]:
    seen = context.halves
    if run_out(seen.forward) is not None:
        yield Finding("info", "backward: not judged, since the forward pass runs out already")
        return
    if not seen.backward:
        yield Finding("info", "backward: the loss has no gradient, so there is no such pass")
        return
    failed = {scale: first for scale, steps in seen.backward.items() if (first := run_out(steps)) is not None}
    smallest = min(seen.backward)
    largest = max(seen.backward)
    if smallest in failed:
        one = failed[smallest]
        yield Finding(
            "error",
            f"backward: {one} runs out even at loss scale {smallest:g}: no scale helps, every step is skipped",
            {"op": one.op, "module": one.module, "scale": smallest},
            _where(one),
        )
    elif largest in failed:
        works = max(s for s in seen.backward if s not in failed)
        yield Finding(
            "info" if works >= limits["scale"] else "warn",
            f"backward: {failed[largest]} runs out at loss scale {largest:g} and not at {works:g}: the first steps are "
            "skipped until the scale fits, which is how the scaler works",
            {"works": works, "op": failed[largest].op, "module": failed[largest].module},
        )
    else:
        top = nearest(seen.backward[largest])
        near = f"; nearest {top}, {top.largest / LARGEST:.2%} of the range" if top is not None else ""
        yield Finding("ok", f"backward: nothing runs out at loss scale {largest:g}{near}", {"works": largest})


def _where(step: Step) -> tuple[str, ...]:
    """Return the module of an operator; what the network itself computes is in none."""
    return (step.module,) if step.module else ()


def _halves(steps: Sequence[Step]) -> list[Step]:
    return [s for s in steps if s.dtype == "float16"]


CHECK = Check(
    id="fp16-headroom",
    title="Which operator runs out of half precision's range first?",
    measures="largest |result| of every operator under CUDA autocast's dtype policy, over 65504; forward, and "
    "backward at loss "
    "scales 65536, 1024 and 1; the first whose inputs are finite and whose result is not",
    threshold="forward: warn at a tenth of the range, error at half of it; an infinite denominator makes zeros and "
    "no NaN, so "
    "results are looked at operator by operator. Backward: error when even loss scale 1 runs out",
    advice="compute the operator that is named in float32 (a with torch.autocast(enabled=False) around it), divide "
    "before the product, or train in bfloat16",
    cost="half",
    run=run,
    limits={"warn": 0.1, "error": 0.5, "scale": 1024.0},
    source="IEEE 754 binary16; pytorch/pytorch, aten/src/ATen/autocast_mode.h",
)
