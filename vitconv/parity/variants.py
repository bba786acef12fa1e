"""Equivalent variants of the baseline: how far the same function strays at a precision by being computed otherwise."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from vitconv.errors import VitconvError
from vitconv.hosts.base.host import Built, Host, Spec
from vitconv.parity.bridge import bridge_of, state_of
from vitconv.parity.compare import distances, gaps
from vitconv.parity.pair import Pair
from vitconv.parity.side import Side
from vitconv.parity.tolerance import SAME_FUNCTION
from vitconv.parity.trace import Trace, cotangent_of
from vitconv.registry import HOSTS, load

# How a variant is run: (precision, the float64 trace it is held against, weights, loss scale) to its trace.
Run = Callable[[str, Trace, str, float], Trace]


def variants(pair: Pair, weights: str) -> dict[str, Run]:
    """Return {name: how to run it} of the baseline's equivalent variants.

    The batch in the opposite order; every image alone; attention composed of its parts in place of a fused kernel; and,
    where the facts are known, this package's reference with the same weights, whose code is another (its queries,
    keys and values are projected apart), after it has been found to be the same function in float64.
    """
    out: dict[str, Run] = {
        "batch reversed": _reversed(pair),
        "images alone": _alone(pair),
        "composed sdpa": _sdpa(pair),
    }
    other = pair.other(weights, lambda: _reference(pair, weights))
    if other is not None:
        out["reference"] = lambda p, exact, w, s: pair.run(other, exact.inputs, p, w, loss_scale=s)
    return out


def _reversed(pair: Pair) -> Run:
    def run(precision: str, exact: Trace, weights: str, scale: float) -> Trace:
        images, cotangent = pair.images[exact.inputs].flip(0), cotangent_of(exact.output.shape, pair.seed).flip(0)
        t = pair.run(pair.a, exact.inputs, precision, weights, images=images, cotangent=cotangent, loss_scale=scale)
        return _batchwise([t], lambda many: many[0].flip(0), lambda many: many[0])

    return run


def _alone(pair: Pair) -> Run:
    def run(precision: str, exact: Trace, weights: str, scale: float) -> Trace:
        cotangent, images = cotangent_of(exact.output.shape, pair.seed), pair.images[exact.inputs]
        each = [
            pair.run(
                pair.a, exact.inputs, precision, weights,
                images=images[j : j + 1], cotangent=cotangent[j : j + 1], loss_scale=scale,
            )
            for j in range(len(images))
        ]  # fmt: skip
        return _batchwise(each, torch.cat, lambda many: torch.stack(many).sum(0))

    return run


def _sdpa(pair: Pair) -> Run:
    def composed(_built: Built) -> AbstractContextManager[None]:
        return torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH)

    return lambda precision, exact, weights, scale: pair.run(
        pair.a, exact.inputs, precision, weights, loss_scale=scale, hooks=(composed,)
    )


def _batchwise(
    each: list[Trace], join: Callable[[list[Tensor]], Tensor], add: Callable[[list[Tensor]], Tensor]
) -> Trace:
    """Put traces of parts of a batch together: values along the batch, gradients of parameters added."""

    def over(part: Callable[[Trace], Mapping[str, Tensor]], how: Callable[[list[Tensor]], Tensor]) -> dict[str, Tensor]:
        return {n: how([part(t)[n] for t in each]) for n in part(each[0])}

    grads = {
        n: join([t.grads[n] for t in each]) if n == "input" else add([t.grads[n] for t in each]) for n in each[0].grads
    }
    return dataclasses.replace(
        each[0],
        taps=over(lambda t: t.taps, join),
        tap_grads=over(lambda t: t.tap_grads, join),
        grads=grads,
        output=join([t.output for t in each]),
    )


def _reference(pair: Pair, weights: str) -> Side | None:
    """Return the baseline's network in the reference's code, if it can be built and is the same function."""
    a = pair.a
    if a.built.host == "reference" or a.edits is not None:
        return None
    try:
        host: Host = load(HOSTS, "reference")
        spec = Spec("", {}, a.facts, a.shapes)
        built = host.build(spec)
        bridge = bridge_of(state_of(built.module), built.dialects, built.facts)
        side = dataclasses.replace(
            a, label="reference", spec="reference", built=built, host=host, ask=spec, bridge=bridge, remade=True
        )
        inputs = next(iter(pair.images))
        same = gaps(pair.run(a, inputs, "fp64", weights), pair.run(side, inputs, "fp64", weights))
    except VitconvError:
        return None
    return side if all(g.rel_rms <= SAME_FUNCTION for g in same) else None


def spread(
    runs: Mapping[str, Run], reference64: Trace, precision: str, weights: str, scale: float
) -> Iterator[tuple[str, dict[tuple[str, str], float]]]:
    """Yield the errors of every variant: {(kind, name): ||error||}."""
    for name, run in runs.items():
        yield name, distances(reference64, run(precision, reference64, weights, scale))
