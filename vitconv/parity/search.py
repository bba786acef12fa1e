"""Search the fault catalogue: which faults, put into the reference ViT, give exactly what a network did."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

import torch
from torch import Tensor

from vitconv.parity.faults import FAULTS
from vitconv.parity.faults.error import (
    Left,
    Residual,
    Scale,
    distances,
    exact_scale,
    ratios,
    residual,
    widened,
)
from vitconv.parity.faults.fault import MEASURED, AnyConfig, Fault, Knobs
from vitconv.parity.faults.rebuild import Rebuilt, Seen
from vitconv.parity.locus import Combination, Locus, Placed, layer_in, locate
from vitconv.parity.solve import solved

# Below float64 the rounding errors of a faulty network are larger than those of the right one, by factors that two
# runs do not tell: faults that leave up to this many times what is allowed are reported, ahead of any that leave less
# with one fault more.
NEARLY = 2.0
# A set of hypotheses that all pass is narrowed to those this close to the best, by their mean square ratio.
CLOSE = 1.5
# A pair of faults is tried the later, the less its better one helps alone; of its other one that says this much less.
LEAD = 4
# Past so many times what is allowed a difference is no rounding error of any network.
NEAR = 1e4


@dataclass(frozen=True)
class Budget:
    """What a search may cost.

    `faults`: how many at once. `beam`: how many of the furthest combinations are followed. `pairs`: how many pairs of
    one place are tried at most when no single fault fits there. `work`: fewer pairs of large networks are, so that all
    of them cost some `work` multiplications in a projection of the block's width; never fewer than `least`.
    """

    faults: int = 3
    beam: int = 6
    pairs: int = 1500
    work: float = 6e9
    least: int = 60

    def pairs_of(self, config: AnyConfig, images: int) -> int:
        """Return how many pairs are tried in a network, fed so many images."""
        one = config.width**2 * (config.positions + config.prefix) * images
        return min(self.pairs, max(self.least, int(self.work / max(one, 1))))


@dataclass(frozen=True)
class Sample:
    """One input, what the network under suspicion did with it, and what counts as equal to that (float64: exact)."""

    images: Tensor
    cotangent: Tensor | None
    seen: Left
    scale: Scale | None = None


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
        dtype: what the samples were computed in. Below float64 a network counts as the same as one with a fault when
            the difference is some times the rounding error of either: some faults make rounding errors grow.
        rough: name of the fault whose effect is such a rounding error: constants of the network are known to that only.
        tried, runs: what was tried so far, and how many runs of the whole network that took.
    """

    config: AnyConfig
    weights: Mapping[str, Tensor]
    samples: Sequence[Sample]
    budget: Budget = field(default_factory=Budget)
    stored: bool = False
    catalogue: tuple[str, ...] = tuple(FAULTS)
    dtype: torch.dtype = torch.float64
    rough: str = ""
    tried: dict[str, None] = field(default_factory=dict)
    runs: int = 0
    stretches: int = 0

    def __post_init__(self) -> None:
        self.backward = any(s.cotangent is not None and s.seen.grads for s in self.samples)
        self.weights = {name: w.detach().double() for name, w in self.weights.items()}
        self.templates: dict[str, Any] = {}
        self.scales = [exact_scale(s.seen) if s.scale is None else s.scale for s in self.samples]

    def knobs(self, found: Iterable[Placed], blocks: tuple[int, ...] | None = None) -> Knobs | None:
        """Return the knobs of a combination, as far as `blocks` need them, or None when this network cannot have it."""
        knobs: Knobs | None = Knobs(self.config)
        for placed in found:
            layers = placed.layers
            if blocks is not None and placed.fault.per_block:
                layers = blocks if layers is None else tuple(i for i in layers if i in blocks)
                if not layers:
                    continue
            knobs = None if knobs is None else placed.fault.apply(knobs, layers)
        return knobs

    def plain(self) -> list[Seen]:
        """Run the reference without faults on every sample, in float64."""
        rebuilt = self.rebuilt(Knobs(self.config), self.backward)
        return [rebuilt.run(s.images, s.cotangent) for s in self.samples]

    def state(self, found: Combination) -> State | None:
        """Run a combination on all samples (on further ones while it gets somewhere) and sum up; None: impossible."""
        knobs = self.knobs(found)
        if knobs is None:
            return None
        rebuilt = self.rebuilt(knobs, self.backward)
        worst, squares, count, left, locus = 0.0, 0.0, 0, Residual(0.0, 0.0, ""), None
        for at, (sample, scale) in enumerate(zip(self.samples, self.scales, strict=True)):
            self.runs += 1
            try:
                run = rebuilt.run(sample.images, sample.cotangent)
            except (RuntimeError, ValueError):
                # Shapes that do not fit: this network cannot be it.
                return None
            found_ratios = ratios(run, sample.seen, scale)
            if self._near(max(found_ratios.values())):
                rough = self.roughened(knobs, self.backward).run(sample.images, sample.cotangent)
                scale = widened(scale, rough, run)
                found_ratios = ratios(run, sample.seen, scale)
            here = residual(found_ratios, scale)
            left = here if max(here.forward, here.backward) >= max(left.forward, left.backward) else left
            worst = max(worst, *found_ratios.values())
            squares += sum(r * r for r in found_ratios.values())
            count += len(found_ratios)
            spot = locate(found_ratios, sample.seen, self.config.depth)
            if spot is not None and (locus is None or spot.order < locus.order):
                locus = dataclasses.replace(spot, sample=at)
            if locus is not None and len(found) > 0:
                break
        return State(found, worst, (squares / max(count, 1)) ** 0.5, left, locus)

    def rebuilt(
        self,
        knobs: Knobs,
        backward: bool,
        blocks: tuple[int, ...] | None = None,
        dtype: torch.dtype = torch.float64,
    ) -> Rebuilt:
        """Return the reference ViT with these knobs."""
        return Rebuilt(knobs, self.weights, self.stored, backward, self.templates, dtype, blocks)

    def roughened(self, knobs: Knobs, backward: bool, blocks: tuple[int, ...] | None = None) -> Rebuilt:
        """Return the reference ViT with these knobs as rounding makes it: what it then does otherwise is its error."""
        rough = FAULTS[self.rough].apply(knobs, blocks) if self.rough else knobs
        return self.rebuilt(knobs if rough is None else rough, backward, blocks, self.dtype)

    def _near(self, ratio: float) -> bool:
        """Whether it is worth while to ask how large the rounding errors of this very network are."""
        return (self.dtype != torch.float64 or bool(self.rough)) and 1 < ratio < NEAR

    def fits(self, found: Combination, locus: Locus) -> float:
        """Return the ratio that remains up to the locus when the stretch ahead of it runs alone; infinite: impossible.

        The stretch is fed what the network under suspicion has there; backward, also its gradient at the end.
        """
        blocks = self._on_the_way(locus)
        knobs = self.knobs(found, blocks)
        if knobs is None:
            return inf
        sample, scale = self.samples[locus.sample], self.scales[locus.sample]
        stop = "head" if locus.tap == "output" else locus.tap
        seen = sample.seen
        grad = seen.tap_grads.get(stop) if locus.phase == "backward" else None
        if locus.tap == "output" or (locus.phase == "backward" and (grad is None or stop not in seen.taps)):
            return 0.0  # no stretch shows it: only the whole run will tell
        self.stretches += 1
        value = sample.images if locus.start is None else seen.taps[locus.start]
        try:
            run = self.rebuilt(knobs, grad is not None, blocks).stretch(locus.start, value, stop, grad, sample.images)
            ratio = self._stretched(run, locus, scale)
            if self._near(ratio):
                rough = self.roughened(knobs, grad is not None, blocks)
                itself = rough.stretch(locus.start, value, stop, grad, sample.images)
                ratio = self._stretched(run, locus, widened(scale, itself, run))
        except (RuntimeError, ValueError):
            return inf
        return ratio

    def value(self, found: Combination, locus: Locus) -> Tensor | None:
        """Return the value at a locus with these faults, by the stretch ahead of it where that can run alone."""
        whole = locus.tap == "output"
        blocks = None if whole else self._on_the_way(locus)
        knobs = self.knobs(found, blocks)
        if knobs is None:
            return None
        sample = self.samples[locus.sample]
        rebuilt = self.rebuilt(knobs, False, blocks)
        self.stretches += 1
        try:
            if whole:
                run = rebuilt.run(sample.images)
                return run.output if locus.tap == "output" else run.taps.get(locus.tap)
            value = sample.images if locus.start is None else sample.seen.taps[locus.start]
            return rebuilt.stretch(locus.start, value, locus.tap, None, sample.images).taps[locus.tap]
        except (RuntimeError, ValueError):
            return None

    def _on_the_way(self, locus: Locus) -> tuple[int, ...]:
        """Return the blocks between a locus' start and its tap."""
        first = 0 if locus.start in (None, "embed") else (layer_in(locus.start or "") or 0) + 1
        last = -1 if locus.tap == "embed" else locus.layer if locus.layer is not None else self.config.depth - 1
        return tuple(range(first, last + 1))

    def _stretched(self, run: Seen, locus: Locus, scale: Scale) -> float:
        seen = self.samples[locus.sample].seen
        gaps = distances(run, seen)
        if locus.phase == "forward":
            order = list(seen.taps)
            first = 0 if locus.start is None else order.index(locus.start) + 1
            passed = order[first : order.index(locus.tap) + 1]
            return max((gaps["tap", n] / scale.allowed["tap", n] for n in passed if ("tap", n) in gaps), default=inf)
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
            if fault.visible in (*MEASURED, "solved") or (locus.phase == "forward" and fault.visible == "backward"):
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
        # What helps most comes first, with every other one: of two faults the small one alone may help nothing.
        ordered = sorted(itertools.permutations(range(len(near)), 2), key=lambda at: LEAD * min(at) + max(at))
        for i, j in ordered[: self.budget.pairs_of(self.config, len(self.samples[locus.sample].images))]:
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

    def _further(self, front: Sequence[State]) -> list[State]:
        """Return what faults with a number reach, else what pairs do."""
        reached: list[State] = []
        for state in front:
            if state.locus is not None and len(state.found) < self.budget.faults:
                every = (self.state(found) for found in solved(self, state.found, state.locus))
                reached += [s for s in every if s and (s.locus is None or s.locus.order > state.locus.order)]
        return reached or self.reach(front, by_pairs=True)

    def run(self) -> tuple[State | None, list[State]]:
        """Return what is wrong without faults (None: the reference cannot be run), and all combinations that fit."""
        first = self.state(())
        if first is None or first.passes:
            return first, []
        front, done, nearly = [first], list[State](), list[State]()
        while front and not done and not nearly:
            # Where rounding is the measure, what is hardly more than it needs no further fault to be taken away.
            nearly = [s for s in front if self.dtype != torch.float64 and s.found and s.worst <= NEARLY]
            reached = self.reach(front, by_pairs=False) or ([] if nearly else self._further(front))
            done = [s for s in reached if s.passes]
            reached.sort(key=_promise)
            front = reached[: self.budget.beam]
        return first, [*_narrowed(nearly), *_narrowed(done)]


def _promise(state: State) -> tuple[float, int, int, float]:
    """Return what puts the best first: how far, how few faults, how many of them everywhere, how close."""
    scoped = sum(p.layers is not None for p in state.found)
    return -(state.locus.order if state.locus else inf), len(state.found), scoped, state.worst


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
