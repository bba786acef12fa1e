"""Where two sides part: the first tap off the floor, forward and backward, and whether it is one block or all."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from torch import Tensor

from vitconv.errors import Refused
from vitconv.layout.canonical import layer_of
from vitconv.parity.compare import Gap, gaps_each
from vitconv.parity.pair import Pair
from vitconv.parity.precision import precision_of
from vitconv.parity.side import Side
from vitconv.parity.tolerance import K_BLOCK, K_PARAMETER, ROUNDINGS, SAME_FUNCTION
from vitconv.parity.trace import Trace


@dataclass(frozen=True)
class BlockGap:
    """One block run alone on the baseline's own input.

    `update` is the gap of what the block adds to the stream, against the size of that, or its ratio to the baseline's
    own error; `part` is the first tap inside that is off: "attn", "mlp", or None for neither. `backward` is the worst
    gap of the block's gradients.
    """

    name: str
    update: float
    part: str | None
    backward: float
    off: bool
    off_backward: bool


@dataclass(frozen=True)
class Where:
    """Where the sides part.

    Attributes:
        precision, weights, inputs: the run that this is of.
        forward: the first tap in running order that is off, or None.
        backward: the first value in the order of the backward pass whose gradient is off, or None.
        profile: (tap, how far off): the gap in float64, the ratio to the baseline's error elsewhere.
        backward_profile: the same of gradients, from the output to the input.
        blocks: every block alone, or () when they could not be forced.
        local: True when some blocks are off and others are not, False when all are, None when not known.
        sentence: all this in words.
    """

    precision: str
    weights: str
    inputs: str
    forward: str | None
    backward: str | None
    profile: tuple[tuple[str, float], ...]
    backward_profile: tuple[tuple[str, float], ...]
    blocks: tuple[BlockGap, ...] = ()
    local: bool | None = None
    sentence: str = ""

    @property
    def off_blocks(self) -> tuple[int, ...]:
        """The layers whose block alone is off, forward or backward."""
        found = (b for b in self.blocks if b.off or b.off_backward)
        return tuple(int(b.name.removeprefix("blocks.")) for b in found)


def backward_order(names: Iterable[str], taps: Sequence[str]) -> list[str]:
    """Sort taps and parameters in the order in which a backward pass reaches them, from the output to the input."""
    running = {name: j for j, name in enumerate(taps)}

    def key(name: str) -> tuple[float, int]:
        if name in running:
            return -float(running[name]), 0
        if name == "input":
            return 1e9, 1
        return place(name), _depth_in_branch(name)

    def place(name: str) -> float:
        # A parameter is reached right after the value it takes part in.
        owner = name
        while owner and owner not in running:
            owner = owner.rpartition(".")[0]
        layer = layer_of(name)
        if not owner and name.startswith("pool."):
            owner = "pool"
        if layer is not None and owner == f"blocks.{layer}":
            inner = "mlp" if ".norm2" in name or ".ls2" in name else "attn"
            inner = f"blocks.{layer}.{inner}"
            owner = inner if inner in running else owner
        return -float(running[owner]) if owner in running else 1e8

    return sorted(names, key=key)


def _depth_in_branch(name: str) -> int:
    """Return how late a backward pass through a branch reaches a parameter: what ends the branch comes first."""
    parts = name.split(".")
    late = (("ls1", "ls2"), ("out", "down"), ("norm",), ("q_norm", "k_norm"), ("q", "k", "v", "up", "gate"))
    found = [j for j, group in enumerate(late) if any(p in group for p in parts[2:])]
    return 1 + (max(found) if found else len(late) * (parts[0] == "blocks"))


def first_off(
    off: Mapping[tuple[str, str], float], limits: Mapping[str, float], taps: Sequence[str]
) -> tuple[str | None, str | None]:
    """Return the first tap, and in backward order the first gradient, past the limit of its kind."""
    forward = next(
        (n for n in (*taps, "output") if off.get(("tap" if n in taps else "output", n), 0) > limits["tap"]), None
    )
    backward: dict[str, bool] = {}
    for (kind, name), value in off.items():
        if kind in ("tap-grad", "grad"):
            backward[name] = backward.get(name, False) or value > limits[kind]
    order = backward_order(backward, taps)
    return forward, next((n for n in order if backward[n]), None)


def locate(
    pair: Pair,
    off: Mapping[tuple[str, str], float],
    limits: Mapping[str, float],
    *,
    precision: str,
    weights: str,
    inputs: str,
    loss_scale: float = 1.0,
) -> Where:
    """Find where the sides part.

    Args:
        pair: the sides.
        off: {(kind, name): how far off}: the gap in float64, the ratio to the baseline's error elsewhere.
        limits: {kind: what is still on the floor}.
        precision: of the run that `off` is of, and in which blocks are run alone.
        weights: the set of weights of that run.
        inputs: the images of that run.
        loss_scale: of half precision.
    """
    reference = pair.run(pair.a, inputs, "fp64", weights)
    taps = list(reference.taps)
    try:
        blocks = _blocks(pair, reference, precision, weights, inputs, loss_scale)
        more = ""
    except Refused as e:
        blocks, more = (), f"; blocks could not be run alone: {e}"
    if pair.blockwise:
        more = "; inside blocks nothing was kept"
    return profile_of(off, limits, taps, precision=precision, weights=weights, inputs=inputs, blocks=blocks, more=more)


def profile_of(
    off: Mapping[tuple[str, str], float],
    limits: Mapping[str, float],
    taps: Sequence[str],
    *,
    precision: str,
    weights: str,
    inputs: str,
    blocks: tuple[BlockGap, ...] = (),
    more: str = "",
) -> Where:
    """Say where the sides part by what was measured: `off`, and every block alone if that was run."""
    forward, backward = first_off(off, limits, taps)
    bad = [b for b in blocks if b.off or b.off_backward]
    local = None if not blocks or not bad else len(bad) < len(blocks)
    gradients = {n: v for (kind, n), v in off.items() if kind in ("tap-grad", "grad")}
    return Where(
        precision=precision,
        weights=weights,
        inputs=inputs,
        forward=forward,
        backward=backward,
        profile=tuple((n, off["tap", n]) for n in taps if ("tap", n) in off),
        backward_profile=tuple((n, gradients[n]) for n in backward_order(gradients, taps)),
        blocks=blocks,
        local=local,
        sentence=_sentence(forward, backward, blocks, bad) + more,
    )


def _blocks(
    pair: Pair, reference: Trace, precision: str, weights: str, inputs: str, loss_scale: float
) -> tuple[BlockGap, ...]:
    """Run every block of B, and outside float64 of A too, on the float64 baseline's input and gradient."""
    forced_b = _forced(pair, pair.b, reference, precision, weights, inputs, loss_scale)
    update, inner = _updates(reference, forced_b)
    limit = back_limit = SAME_FUNCTION
    if precision != "fp64":
        forced_a = _forced(pair, pair.a, reference, precision, weights, inputs, loss_scale)
        base, inner_base = _updates(reference, forced_a)
        floor = ROUNDINGS * precision_of(precision).unit
        update = {n: v / max(base[n], floor) for n, v in update.items()}
        inner = {k: v / max(inner_base[k], floor) for k, v in inner.items()}
        limit, back_limit = K_BLOCK, K_PARAMETER
    out = []
    for name, gap in update.items():
        own = {(kind, n): v for (kind, n), v in inner.items() if _owner(kind, n, list(update)) == name}
        part = next((p for p in ("attn", "mlp") if own.get(("tap", f"{name}.{p}"), 0.0) > limit), None)
        back = max((v for (kind, _), v in own.items() if kind != "tap"), default=0.0)
        out.append(BlockGap(name, gap, part, back, gap > limit, back > back_limit))
    return tuple(out)


def _forced(
    pair: Pair, side: Side, reference: Trace, precision: str, weights: str, inputs: str, loss_scale: float
) -> Trace:
    try:
        return pair.run(side, inputs, precision, weights, teacher=reference, loss_scale=loss_scale)
    except Refused:
        # Where the first block's input cannot be put in, it gets the side's own; the others get the teacher's.
        teacher = dataclasses.replace(reference, taps={n: t for n, t in reference.taps.items() if n != "embed"})
        return pair.run(side, inputs, precision, weights, teacher=teacher, loss_scale=loss_scale)


def _owner(kind: str, name: str, blocks: list[str]) -> str | None:
    """Return the block that computes a value: the gradient of the stream between two is the later one's."""
    if kind == "tap-grad" and name in ("embed", *blocks):
        after = blocks.index(name) + 1 if name in blocks else 0
        return blocks[after] if after < len(blocks) else None
    layer = layer_of(f"{name}.x")
    return None if layer is None else f"blocks.{layer}"


def _updates(reference: Trace, forced: Trace) -> tuple[dict[str, float], dict[tuple[str, str], float]]:
    """Return the gap of every block's update, and of every value and gradient inside blocks."""
    found = gaps_each(reference, [forced], elementwise=())[0]
    inner = {g.key: g.rel_rms for g in found if g.kind in ("tap", "tap-grad", "grad")}
    updates, stream = {}, "embed"
    for name in (n for n in reference.taps if n.startswith("blocks.") and n.count(".") == 1):
        if stream in reference.taps and name in forced.taps:
            updates[name] = _update(reference.taps[stream], reference.taps[name], forced.taps[name])
        stream = name
    return updates, inner


def _update(x: Tensor, y: Tensor, z: Tensor) -> float:
    x, y, z = (t.detach().double().cpu() for t in (x, y, z))
    if z.shape != y.shape:
        return inf
    size = float((y - x).norm()) if x.shape == y.shape else float(y.norm())
    return float((z - y).norm()) / size if size else 0.0


def _sentence(forward: str | None, backward: str | None, blocks: Sequence[BlockGap], bad: Sequence[BlockGap]) -> str:
    if forward is None and backward is None:
        return "they part nowhere that was looked at"
    words = [f"the forward pass parts first at {forward}" if forward else "the forward pass agrees"]
    words.append(f"the backward pass first at {backward}" if backward else "the backward pass agrees")
    if blocks:
        if not bad:
            words.append("every block alone is right: look ahead of and behind the blocks")
        elif len(bad) == len(blocks):
            words.append("every block alone is off: a global setting")
        else:
            which = ", ".join(b.name + (f" ({b.part})" if b.part else "") for b in bad[:6])
            words.append(f"alone, {len(bad)} of {len(blocks)} blocks are off: {which}")
    return "; ".join(words)


def gaps_as_map(found: Iterable[Gap]) -> dict[tuple[str, str], float]:
    """Return {(kind, name): relative gap}."""
    return {g.key: g.rel_rms for g in found}
