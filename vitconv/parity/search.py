"""Search the fault catalogue: which faults, put into the reference ViT, give exactly what a network did."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from torch import Tensor

from vitconv.parity.faults import FAULTS
from vitconv.parity.faults.error import (
    FORWARD,
    Item,
    Left,
    Residual,
    Scale,
    distances,
    exact_scale,
    ratios,
    residual,
)
from vitconv.parity.faults.fault import KINDS, Fault, Knobs
from vitconv.parity.faults.rebuild import Rebuilt, Seen
from vitconv.vit.config import ViTConfig
from vitconv.vit.model import ViT

# A set of hypotheses that all pass is narrowed to those this close to the best, by their mean square ratio.
CLOSE = 1.5


@dataclass(frozen=True)
class Budget:
    """What a search may cost.

    `faults`: how many at once. `beam`: how many of the furthest combinations are followed. `pairs`: how many pairs of
    one place are tried when no single fault fits there.
    """

    faults: int = 3
    beam: int = 3
    pairs: int = 1500


@dataclass(frozen=True)
class Sample:
    """One input, what the network under suspicion did with it, and what counts as equal to that (float64: exact)."""

    images: Tensor
    cotangent: Tensor | None
    seen: Left
    scale: Scale | None = None


@dataclass(frozen=True, order=True)
class Placed:
    """A fault, and the blocks it is in (None: everywhere). Its text is `name` or `name@3` or `name@2,3`."""

    name: str
    layers: tuple[int, ...] | None = None

    def __str__(self) -> str:
        return self.name if self.layers is None else f"{self.name}@{','.join(map(str, self.layers))}"

    @property
    def fault(self) -> Fault:
        """Return the entry of the catalogue."""
        return FAULTS[self.name]

    @property
    def title(self) -> str:
        """Return in words what it is and where."""
        if self.layers is None:
            return self.fault.title
        return f"{self.fault.title}, in block{'s' * (len(self.layers) > 1)} {', '.join(map(str, self.layers))}"


Combination = tuple[Placed, ...]


@dataclass(frozen=True)
class Locus:
    """Where values part first.

    Attributes:
        phase: forward or backward.
        tap: the first tap that differs (output: none of them), or the block or embed that spoils gradients first.
        start: the last tap ahead of it whose value is that of the stream, or None.
        kinds: the kinds of places between the two.
        order: how far it is on the way, forward and then backward; the larger, the better.
    """

    phase: str
    tap: str
    start: str | None
    kinds: frozenset[str]
    order: int

    @property
    def layer(self) -> int | None:
        """Return the block, if it is in one."""
        return int(self.tap.split(".")[1]) if self.tap.startswith("blocks.") else None


@dataclass(frozen=True)
class State:
    """A combination, what remains of the error with it, and where."""

    found: Combination
    worst: float
    mean: float
    left: Residual
    locus: Locus | None

    @property
    def passes(self) -> bool:
        """Return True when nothing differs any more."""
        return self.worst <= 1


@dataclass
class Search:
    """The search for one network.

    Attributes:
        config, weights: the reference ViT that computes what is right, and its canonical weights.
        samples: what the network under suspicion did.
        stored: see `Rebuilt`.
        catalogue: names of the faults to try.
        tried, runs: what was tried so far, and how many runs of the whole network that took.
    """

    config: ViTConfig
    weights: Mapping[str, Tensor]
    samples: Sequence[Sample]
    budget: Budget = field(default_factory=Budget)
    stored: bool = False
    catalogue: tuple[str, ...] = tuple(FAULTS)
    tried: dict[str, None] = field(default_factory=dict)
    runs: int = 0
    stretches: int = 0

    def __post_init__(self) -> None:
        self.backward = any(s.cotangent is not None and s.seen.grads for s in self.samples)
        self.weights = {name: w.detach().double() for name, w in self.weights.items()}
        self.templates: dict[ViTConfig, ViT] = {}
        self.scales = [exact_scale(s.seen) if s.scale is None else s.scale for s in self.samples]

    def knobs(self, found: Iterable[Placed]) -> Knobs | None:
        """Return the knobs of a combination, or None when this network cannot have it."""
        knobs: Knobs | None = Knobs(self.config)
        for placed in found:
            knobs = None if knobs is None else placed.fault.apply(knobs, placed.layers)
        return knobs

    def plain(self) -> list[Seen]:
        """Run the reference without faults on every sample, in float64."""
        rebuilt = Rebuilt(Knobs(self.config), self.weights, self.stored, self.backward, self.templates)
        return [rebuilt.run(s.images, s.cotangent) for s in self.samples]

    def state(self, found: Combination) -> State | None:
        """Run a combination on all samples (on further ones while it gets somewhere) and sum up; None: impossible."""
        knobs = self.knobs(found)
        if knobs is None:
            return None
        rebuilt = Rebuilt(knobs, self.weights, self.stored, self.backward, self.templates)
        worst, squares, count, left, locus = 0.0, 0.0, 0, Residual(0.0, 0.0, ""), None
        for sample, scale in zip(self.samples, self.scales, strict=True):
            self.runs += 1
            try:
                run = rebuilt.run(sample.images, sample.cotangent)
            except (RuntimeError, ValueError):
                # Shapes that do not fit: this network cannot be it.
                return None
            found_ratios = ratios(run, sample.seen, scale)
            here = residual(found_ratios, scale)
            left = here if max(here.forward, here.backward) >= max(left.forward, left.backward) else left
            worst = max(worst, *found_ratios.values())
            squares += sum(r * r for r in found_ratios.values())
            count += len(found_ratios)
            spot = self.locus(found_ratios, sample.seen)
            if spot is not None and (locus is None or spot.order < locus.order):
                locus = spot
            if locus is not None and len(found) > 0:
                break
        return State(found, worst, (squares / max(count, 1)) ** 0.5, left, locus)

    def locus(self, found: Mapping[Item, float], seen: Left) -> Locus | None:
        """Return where values part first, or None when they do not."""
        taps = [name for name in seen.taps if ("tap", name) in found]
        start: str | None = None
        passed: list[str] = []
        for at, name in enumerate(taps):
            if found["tap", name] > 1:
                return Locus("forward", name, start, _between(passed, name), at)
            passed.append(name)
            if name == "embed" or (name.startswith("blocks.") and name.count(".") == 1):
                start, passed = name, []
        if found.get(("output", "output"), 0.0) > 1:
            return Locus("forward", "output", start, _between(passed, "output"), len(taps))
        wrong = [item for item, r in found.items() if item[0] not in FORWARD and r > 1]
        if not wrong:
            return None
        # Backward it is the last block that has a wrong gradient; what is ahead of it has got wrong ones from it. A
        # gradient at a block's own end comes from behind it.
        depth = self.config.depth
        late = [name for kind, name in wrong if kind == "grad" and name.startswith(("norm.", "pool.", "head", "trunk"))]
        ends = [_layer(name) for kind, name in wrong if kind == "tap-grad" and _is_stream(name)]
        inside = [_layer(name) for kind, name in wrong if not (kind == "tap-grad" and _is_stream(name))]
        layer = max([i for i in inside if i is not None] + [i + 1 for i in ends if i is not None], default=-1)
        if late or layer >= depth:
            return Locus("backward", "output", f"blocks.{depth - 1}", frozenset(("norm", "pool", "head")), 1000)
        if layer >= 0:
            start = "embed" if layer == 0 else f"blocks.{layer - 1}"
            kinds = frozenset(("attn", "mlp", "block", "norm"))
            return Locus("backward", f"blocks.{layer}", start, kinds, 1000 + depth - layer)
        if ("tap-grad", "embed") in found and found["tap-grad", "embed"] > 1:
            return Locus("backward", "blocks.0", "embed", frozenset(("attn", "mlp", "block", "norm")), 1000 + depth)
        return Locus("backward", "embed", None, frozenset(("embed", "norm")), 1001 + depth)

    def fits(self, found: Combination, locus: Locus) -> float:
        """Return the ratio that remains up to the locus when the stretch ahead of it runs alone; infinite: impossible.

        The stretch is fed what the network under suspicion has there; backward, also its gradient at the end.
        """
        knobs = self.knobs(found)
        if knobs is None:
            return inf
        sample, scale = self.samples[0], self.scales[0]
        stop = "head" if locus.tap == "output" else locus.tap
        seen = sample.seen
        grad = None
        if locus.phase == "backward":
            if locus.tap == "output" or stop not in seen.tap_grads or stop not in seen.taps:
                return 0.0
            grad = seen.tap_grads[stop]
        self.stretches += 1
        value = sample.images if locus.start is None else seen.taps[locus.start]
        rebuilt = Rebuilt(knobs, self.weights, self.stored, grad is not None, self.templates)
        try:
            run = rebuilt.stretch(locus.start, value, stop, grad)
        except (RuntimeError, ValueError):
            return inf
        if locus.tap == "output":
            return 0.0
        gaps = distances(run, seen)
        if locus.phase == "forward":
            return max(
                (d / scale.allowed[item] for item, d in gaps.items() if item[0] == "tap" and item[1] != locus.start),
                default=inf,
            )
        prefix = f"{locus.tap}."
        worst = [
            d / scale.allowed[item] for item, d in gaps.items() if item[0] == "grad" and item[1].startswith(prefix)
        ]
        at = ("grad", "input") if locus.start is None else ("tap-grad", locus.start)
        theirs = seen.grads.get("input") if locus.start is None else seen.tap_grads.get(locus.start)
        if theirs is not None and "start" in run.grads:
            worst.append(float((run.grads["start"] - theirs.double()).norm()) / scale.allowed[at])
        return max(worst, default=inf)

    def scopes(self, fault: Fault, locus: Locus) -> list[tuple[int, ...] | None]:
        """Return the blocks a fault may be in, given where it shows: everywhere first."""
        layer = locus.layer
        if layer is None or not fault.per_block:
            return [None]
        rest = tuple(range(layer, self.config.depth)) if locus.phase == "forward" else tuple(range(layer + 1))
        every: list[tuple[int, ...] | None] = [] if fault.single else [None]
        return [*every, (layer,), *([rest] if 1 < len(rest) < self.config.depth and not fault.single else [])]

    def candidates(self, locus: Locus) -> Iterator[str]:
        """Yield the names of the faults that can show at the locus."""
        for name in self.catalogue:
            fault = FAULTS[name]
            if fault.visible == "random" or (locus.phase == "forward" and fault.visible == "backward"):
                continue
            kinds = locus.kinds if fault.visible != "backward" or locus.tap != "embed" else {"embed"}
            if kinds & {*fault.shows, *(["norm"] if fault.visible == "backward" and fault.site == "norm" else [])}:
                yield name

    def movers(self, base: Combination, locus: Locus) -> tuple[list[Combination], list[Placed]]:
        """Return the combinations with one fault more that mend the locus, and the faults that do not, best first."""
        layer = None if locus.layer is None else (locus.layer,)
        near: list[tuple[float, Placed]] = []
        found: list[Combination] = []
        for name in self.candidates(locus):
            fault = FAULTS[name]
            alone = Placed(name, layer if fault.per_block else None)
            if any(p.name == name for p in base) or self.knobs((*base, alone)) is None:
                continue
            self.tried.setdefault(name)
            ratio = self.fits((*base, alone), locus)
            if ratio <= 1:
                found += [(*base, Placed(name, scope)) for scope in self.scopes(fault, locus)]
            elif ratio < inf:
                near.append((ratio, alone))
        near.sort(key=lambda pair: pair[0])
        return found, [placed for _, placed in near]

    def pairs(self, base: Combination, locus: Locus, near: Sequence[Placed]) -> Iterator[Combination]:
        """Yield the combinations with two faults more, of one place, that mend the locus."""
        # Pairs of what helps most first: i + j grows.
        ordered = sorted(itertools.permutations(range(len(near)), 2), key=sum)
        for i, j in ordered[: self.budget.pairs]:
            one, two = near[i], near[j]
            if i > j and not (one.fault.weights and two.fault.weights):
                continue  # in the other order it is the same
            if self.fits((*base, one, two), locus) <= 1:
                for a, b in itertools.product(self.scopes(one.fault, locus), self.scopes(two.fault, locus)):
                    yield (*base, Placed(one.name, a), Placed(two.name, b))

    def reach(self, front: Sequence[State], *, by_pairs: bool) -> list[State]:
        """Return the states that are one fault further than those of the front, or two faults of one place."""
        reached: dict[frozenset[Placed], State] = {}
        for state in front:
            if state.locus is None or len(state.found) + 1 + by_pairs > self.budget.faults:
                continue
            found, near = self.movers(state.found, state.locus)
            for combination in self.pairs(state.found, state.locus, near) if by_pairs else found:
                key = frozenset(combination)
                new = None if key in reached else self.state(combination)
                if new is not None and (new.locus is None or new.locus.order > state.locus.order):
                    reached[key] = new
        return list(reached.values())

    def run(self) -> tuple[State | None, list[State]]:
        """Return what is wrong without faults (None: the reference cannot be run), and all combinations that fit."""
        first = self.state(())
        if first is None or first.passes:
            return first, []
        front, done = [first], list[State]()
        while front and not done:
            reached = self.reach(front, by_pairs=False) or self.reach(front, by_pairs=True)
            done = [s for s in reached if s.passes]
            reached.sort(key=lambda s: (-(s.locus.order if s.locus else 0), len(s.found), s.worst))
            front = reached[: self.budget.beam]
        return first, _narrowed(done)


def _narrowed(done: Sequence[State]) -> list[State]:
    """Keep the fewest faults, and the closest of them; a fault everywhere ahead of the same in each block."""
    if not done:
        return []
    fewest = min(len(s.found) for s in done)
    short = [s for s in done if len(s.found) == fewest]
    best = min(s.mean for s in short)
    # In float64 whatever passes is exact, and differs only in how sums are rounded.
    close = [s for s in short if s.mean <= max(CLOSE * best, 0.05)]
    return sorted(close, key=lambda s: (sum(p.layers is not None for p in s.found), s.mean))


def _layer(name: str) -> int | None:
    parts = name.split(".")
    return int(parts[1]) if parts[0] == "blocks" and len(parts) > 1 else None


def _is_stream(name: str) -> bool:
    return name == "embed" or (name.startswith("blocks.") and name.count(".") == 1)


def _kind(name: str) -> str:
    if not name.startswith("blocks."):
        return "head" if name == "output" else name
    return name.split(".")[2] if name.count(".") == 2 else "block"


def _between(passed: Sequence[str], name: str) -> frozenset[str]:
    """Return the kinds of places behind the taps that passed, up to this one: a tap that is not there hides nothing."""
    kinds = [k for k in KINDS if KINDS.index(k) <= KINDS.index(_kind(name))]
    known = {_kind(p) for p in passed}
    if name != "embed" and not name.startswith("blocks."):
        # The stream behind the last block passed.
        kinds = [k for k in kinds if k in ("norm", "pool", "head")]
    elif name.startswith("blocks."):
        kinds = [k for k in kinds if k != "embed"]
    return frozenset(k for k in kinds if k not in known)
