"""What a run itself shows of why two sides part, where no fault of the catalogue, put into one, gives the other."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from math import inf
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from vitconv.hosts.base.autocasts import Autocast, inside, watched_autocasts
from vitconv.hosts.base.host import Built
from vitconv.layout.match import collapse
from vitconv.parity.cause import Cause
from vitconv.parity.compare import gaps_each
from vitconv.parity.pair import PROBE, Pair
from vitconv.parity.precision import precision_of
from vitconv.parity.side import Side
from vitconv.parity.stage import short
from vitconv.parity.stages.numerics import loss_scale, ratios_of
from vitconv.parity.tolerance import NEARLY, SAME_FUNCTION
from vitconv.parity.trace import Trace
from vitconv.parity.where import Where

# What is cast to half precision and goes on in another one was rounded.
_CAST = "rounded"
SHORT = {"float16": "fp16", "bfloat16": "bf16"}


def observed(pair: Pair, where: Where, cause: Cause) -> Cause:
    """Return what the run shows of a difference that the search did not explain: batches that mix, half precision."""
    found = (by_batch(pair, where.weights) if where.precision == "fp64" else None) or by_halves(pair, where)
    if found is None:
        return cause
    return dataclasses.replace(found, excluded=cause.excluded, runs=cause.runs, stretches=cause.stretches)


def by_batch(pair: Pair, of: str = PROBE) -> Cause | None:
    """Return the cause where side B's output of an image depends on the others of its batch, and side A's does not."""
    first = next((n for n, x in pair.images.items() if len(x) > 1), None)
    if first is None or first_mixed(pair, pair.a, first, of) is not None:
        return None
    found = first_mixed(pair, pair.b, first, of)
    if found is None:
        return None
    site, gap = found
    said = f"the output of an image depends on the others in its batch, first at {site}"
    return _seen("batch-mixed", said, f"an image alone and among others part there by {short(gap)}", before=gap)


def first_mixed(pair: Pair, side: Side, inputs: str, of: str, precision: str = "fp64") -> tuple[str, float] | None:
    """Return the first tap at which an image alone and the same among others part, and by how much; None: nowhere."""
    images = pair.images[inputs]
    alone, among = (pair.run(side, inputs, precision, of, backward=False, images=x) for x in (images[:1], images))
    limit = SAME_FUNCTION if precision == "fp64" else NEARLY * precision_of(precision).unit
    for name, x in (*alone.taps.items(), ("output", alone.output)):
        y = among.output[:1] if name == "output" else among.taps.get(name, x)[:1]
        size = float(y.double().norm())
        gap = inf if x.shape != y.shape else float((x.double() - y.double()).norm()) / (size or 1.0)
        if not gap <= limit:
            return name, gap
    return None


def autocasts_of(pair: Pair, side: Side) -> tuple[Autocast, ...]:
    """Return the autocasts that a side's forward pass switches on itself; watched once."""
    if side.label not in pair.autocasts:
        first, found = next(iter(pair.images)), list[Autocast]()
        precision = pair.finest.get(side.label, ("fp64", ""))[0]
        pair.run(side, first, precision, PROBE, backward=False, hooks=(watching_autocasts(found),))
        pair.autocasts[side.label] = tuple(dict.fromkeys(found))
    return pair.autocasts[side.label]


def watching_autocasts(found: list[Autocast], *, off: bool = False) -> Any:
    """Return a hook of a run that writes the side's own autocasts into `found`, and with `off` keeps them off."""
    return partial(_watch_autocasts, found, off)


def _watch_autocasts(found: list[Autocast], off: bool, built: Built) -> Any:
    return watched_autocasts(built.module, found, off=off)


def off_on_cpu(pair: Pair, side: Side) -> str:
    """Say which autocasts of CUDA's a side switches on, none of which a run on a CPU shows; "" for none."""
    off = [a for a in autocasts_of(pair, side) if a.device == "cuda"]
    if not off or torch.device(pair.device).type == "cuda":
        return ""
    return (
        f"it switches on CUDA's autocast to {told(off)}, which torch leaves off on a CPU: on CUDA this side computes in"
        " half precision there, and float32 on a CPU does not show that"
    )


def acts(pair: Pair, autocast: Autocast, emulated: bool = False) -> bool:
    """Return whether an autocast takes effect where the pair runs; `emulated`: under that of CUDA on a CPU."""
    return autocast.on and (emulated or autocast.device == torch.device(pair.device).type)


def told(every: Iterable[Autocast]) -> str:
    """Return autocasts in words, such as "bfloat16 in blocks.0 and blocks.2"."""
    words = []
    for dtype in dict.fromkeys(a.dtype for a in every):
        places = collapse(list(dict.fromkeys(a.module for a in every if a.dtype == dtype)))
        words.append(f"{dtype} in {', '.join(places[:6])}")
    return " and ".join(words)


def by_autocast(pair: Pair, where: Where) -> Cause | None:
    """Return the cause where side B runs under an autocast of its own that the precision does not ask for.

    B is run once more with it off, and its error, as a multiple of A's, is told with and without.
    """
    p, of, inputs = precision_of(where.precision), where.weights, where.inputs
    reference = pair.run(pair.a, inputs, "fp64", of)
    scale = loss_scale(p.name, reference)
    found, none, theirs = list[Autocast](), list[Autocast](), list[Autocast]()

    def run(side: Side, hook: Any) -> Trace:
        return pair.run(side, inputs, p.name, of, loss_scale=scale, hooks=(hook,), saved=False)

    a, b = run(pair.a, watching_autocasts(theirs)), run(pair.b, watching_autocasts(found))
    asked = "" if p.autocast is None else str(p.autocast).removeprefix("torch.")
    own, same = ([x for x in dict.fromkeys(f) if acts(pair, x, p.autocast is not None)] for f in (found, theirs))
    if not {x.dtype for x in own} - {x.dtype for x in same} - {asked}:
        return None
    off = run(pair.b, watching_autocasts(none, off=True))
    base, *both = gaps_each(reference, [a, b, off], ())
    before, after = (max(ratios_of(base, x, p.unit).values()) for x in both)
    said = f"it runs under an autocast of its own, which {p.name} does not ask for: {told(own)}"
    more = f"with that off, B errs at most {short(after)} times as much as A, with it {short(before)} times"
    name = f"autocast-inside-{SHORT.get(own[0].dtype, own[0].dtype)}"
    return _seen(name, said, more, before=before, after=after)


def by_halves(pair: Pair, where: Where) -> Cause | None:
    """Return the cause where operators of side B, and none of side A, compute in a half precision nobody asked for."""
    p = precision_of(where.precision)
    if p.autocast is not None or p.dtype in (torch.float16, torch.bfloat16):
        return None
    seen: list[dict[str, dict[str, str]]] = []
    for side in (pair.a, pair.b):
        found: dict[str, dict[str, str]] = {}
        hook = partial(_watch_halves, found)
        pair.run(side, where.inputs, p.name, where.weights, backward=False, hooks=(hook,), saved=False)
        seen.append(found)
    own = {dtype: places for dtype, places in seen[1].items() if dtype not in seen[0]}
    if not own:
        return None
    words = [
        f"{dtype} in {', '.join(collapse(list(places)[:6]))} ({', '.join(dict.fromkeys(list(places.values())[:6]))})"
        for dtype, places in own.items()
    ]
    name = f"half-inside-{SHORT[next(iter(own))]}"
    return _seen(name, f"it computes in half precision, which {p.name} does not ask for: {' and '.join(words)}", "")


class _Halves(TorchDispatchMode):
    def __init__(self, stack: Sequence[str], found: dict[str, dict[str, str]]) -> None:
        super().__init__()
        self.stack, self.found = stack, found

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Else torch imports its compiler, ten seconds, to keep it from looking at this class.
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for t in out if isinstance(out, (tuple, list)) else (out,):
            if self.stack and isinstance(t, Tensor) and t.dtype in (torch.float16, torch.bfloat16):
                places = self.found.setdefault(str(t.dtype).removeprefix("torch."), {})
                op = func._schema.name.removeprefix("aten::")  # noqa: SLF001
                if places.get(self.stack[-1], _CAST) == _CAST and not func.is_view:
                    places[self.stack[-1]] = _CAST if op in ("_to_copy", "copy_") else op.strip("_")
        return out


@contextmanager
def _watch_halves(found: dict[str, dict[str, str]], built: Built) -> Iterator[None]:
    with inside(built.module) as stack, _Halves(stack, found):
        yield


def _seen(name: str, said: str, more: str, *, before: float = 0.0, after: float = 0.0) -> Cause:
    reason = f"seen in side B's run: {said}{'; ' if more else ''}{more}"
    return Cause(
        found=(name,), before=before, after=after, rounds=1, side="B", titles=(said,), reason=reason, proven=False,
        watched=True,
    )  # fmt: skip
