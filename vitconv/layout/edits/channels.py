"""Another number of input channels of the patch projection.

Summing over channels keeps the response to an image whose channels are equal; repeating them scaled by c/N, as timm's
`adapt_input_conv` does, keeps it too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vitconv.errors import Refused, UsageError
from vitconv.layout.edits.edit import Edit, Param, Values, choice, count, sized
from vitconv.layout.network import Applied, Cell, Made, Network

HOW = ("sum", "mean", "repeat", "first")
NAME = "embed.patch.weight"


def _apply(network: Network, values: Values) -> Network:
    n: int = values["channels"]
    if NAME not in network.cells:
        raise UsageError(f"--edit change-channels: this network has no {NAME}")
    cell = network.cells[NAME]
    c = cell.shape[1]
    if n == c:
        what = f"{c} channels already; nothing changed"
        return network.noted(Applied("change-channels", what, True, adjoint="the identity"))
    how = _how(c, n, values.get("how"))
    network = network.with_made(NAME, _made(cell, n, how))
    facts = network.facts
    stale = {x: None for x in ("mean", "std") if (known := getattr(facts, x)) is not None and len(known) != n}
    what = f"{c} channels become {n}: {_words(c, n, how)}"
    if stale:
        what += f"; image {' and '.join(stale)} of {c} channels no longer apply and are unknown now"
    applied = Applied("change-channels", what, False, (), (), "the transpose of the same map")
    return sized(network, stale, c=n).noted(applied)


def _how(c: int, n: int, how: str | None) -> str:
    if how in ("sum", "mean") and n != 1:
        raise UsageError(f"--edit change-channels: how={how} gives one channel, {n} are asked for")
    if how == "first" and n > c:
        raise UsageError(f"--edit change-channels: how=first keeps {n} of {c} channels, which are not there")
    if how is not None:
        return how
    if n == 1:
        return "sum"
    if n > c:
        return "repeat"
    raise Refused(
        f"--edit change-channels: {c} channels to {n} can be done in more than one way; say how=first (keep the first"
        f" {n} as they are) or how=repeat (the first {n}, scaled by {c}/{n})"
    )


def _words(c: int, n: int, how: str) -> str:
    return {
        "sum": f"the sum of all {c}; an image repeated over {c} channels gives the same response",
        "mean": f"the mean of all {c}; an image repeated over {c} channels gave {c} times this response",
        "repeat": f"repeated in turn and scaled by {c}/{n} = {c / n:g}",
        "first": f"the first {n} as they are",
    }[how]


def _made(cell: Cell, n: int, how: str) -> Made:
    d, c, p, q = cell.shape
    source = [j % c for j in range(n)]
    factor = c / n if how == "repeat" else 1 / c if how == "mean" else 1.0

    def compute(x: Sequence[Any]) -> Any:
        w = x[0]
        if how == "sum":
            return w.sum(axis=1, keepdims=True)
        if how == "mean":
            return w.sum(axis=1, keepdims=True) / w.dtype.type(c)
        picked = w[:, source]
        return picked if how == "first" else picked * w.dtype.type(factor)

    def back(_: Sequence[Any], grad: Any) -> Sequence[Any]:
        import numpy as np

        out = np.zeros(cell.shape, grad.dtype)
        if how in ("sum", "mean"):
            out += grad * factor
        else:
            for j, k in enumerate(source):
                out[:, k] += grad[:, j] * factor
        return (out,)

    return Made(f"channels {c} -> {n}, {how}", (cell,), (d, n, p, q), cell.dtype, compute, back)


CHANGE_CHANNELS = Edit(
    name="change-channels",
    title="give the patch projection another number of input channels",
    exact="no; sum and repeat to a multiple keep the response to an image whose channels are equal",
    adjoint="the transpose of the same map",
    params=(
        Param("channels", "the new number", count, required=True),
        Param(
            "how",
            "sum or mean (to one channel), repeat (in turn, scaled by old/new), first (kept as they are)",
            choice(*HOW),
            otherwise="sum to one channel, repeat to more; asked for when fewer are kept",
        ),
    ),
    apply=_apply,
    bare="channels",
    example="change-channels:channels=1,how=sum",
)
