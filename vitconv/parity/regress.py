"""A side that exists only in half precision: look for faults far below the rounding error, by pooling inputs.

d is what a fault would change, computed in float64; e is what the side did, less what the side that is right did in the
same precision. Rounding errors of many inputs point anywhere; a fault that is there makes e follow d, with the slope 1.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from torch import Tensor

from vitconv.parity.explain import Cause
from vitconv.parity.faults import FAULTS
from vitconv.parity.faults.error import Left
from vitconv.parity.faults.fault import Knobs
from vitconv.parity.faults.rebuild import Rebuilt
from vitconv.parity.locus import layer_in
from vitconv.vit.config import ViTConfig
from vitconv.vit.model import ViT

# Wrong faults that point almost where the true one does reached 4.3; of clean sides the largest was 2.2.
ACCUSE = 5.0
# The slope of the true fault was 0.85 to 1.02 where it could be told.
SLOPE = 0.3
# ... and where both sides round alike, so that part of a change vanishes in taps of low precision, down to 0.67.
LOOSE = 0.5
# Two correct implementations differ by 1.4 times the rounding error of one; twice that is more than rounding.
FLOOR = 2.8
# One fault fits better than another when their errors, input by input, part by so many deviations.
BETTER = 3.0
# What two faults change points the same way when the cosine between is larger.
COLLINEAR = 0.999
# ... and then slopes this close are one: 1e-7 and 1e-12 in place of 1e-6 are 0.9 and 1.
ALIKE = 1.25
# With fewer inputs a deviation is a guess.
LEAST_INPUTS = 6


@dataclass(frozen=True)
class Predictions:
    """What the right network gives on every input, in float64, and what it gives with each fault (forward only)."""

    base: tuple[Mapping[str, Tensor], ...]
    faulty: Mapping[str, tuple[Mapping[str, Tensor], ...]]


class _Anew(Mapping[str, tuple[Mapping[str, Tensor], ...]]):
    """What every fault gives, made when it is asked for: of a real network all at once would be tens of gigabytes.

    A fault whose shapes do not fit the network is not there.
    """

    def __init__(self, knobs: Mapping[str, Knobs], run: Callable[[Knobs], tuple[dict[str, Tensor], ...]]) -> None:
        self.knobs, self.run = knobs, run
        # The one that others are compared with.
        self.last: tuple[str, tuple[dict[str, Tensor], ...]] | None = None

    def __getitem__(self, name: str) -> tuple[dict[str, Tensor], ...]:
        if self.last is None or self.last[0] != name:
            try:
                self.last = name, self.run(self.knobs[name])
            except (RuntimeError, ValueError):
                raise KeyError(name) from None
        return self.last[1]

    def __iter__(self) -> Iterator[str]:
        return iter(self.knobs)

    def __len__(self) -> int:
        return len(self.knobs)


@dataclass(frozen=True)
class Estimate:
    """How well one fault explains the difference.

    Attributes:
        name: the fault.
        beta: the slope; 1 when it is there, 0 when it is not.
        z: the slope over its standard deviation.
        reach: the z that a fault of this size would have if it were there; below `ACCUSE` it cannot be told. The
            rounding error of the right side bounds it too: where both sides round alike, a fault can vanish in it.
        size: what it changes, against the rounding error.
        left: what remains of the difference when it is taken out, against the rounding error.
        grown: how much larger values are with it; rounding errors grow along.
    """

    name: str
    beta: float
    z: float
    reach: float
    size: float
    left: float
    grown: float = 1.0


@dataclass(frozen=True)
class Regression:
    """The answer: `estimates` of all faults, `ratio` the difference over the rounding error, and the verdicts.

    `layer` is the block in which the difference first is more than rounding, if it is in one.
    """

    estimates: tuple[Estimate, ...]
    ratio: float
    accused: tuple[str, ...]
    excluded: tuple[str, ...]
    undetectable: tuple[str, ...]
    layer: int | None = None

    def cause(self) -> Cause:
        """Return the verdicts as a cause."""
        found = self.accused[:1]
        left = {e.name: e.left for e in self.estimates}
        words = _title(found[0]) if found else ""
        reason = (
            f"by its slope over all inputs: {words}" if found else "no fault of the catalogue stands out of the noise"
        )
        return Cause(
            found=found,
            before=self.ratio,
            after=left[found[0]] if found else self.ratio,
            excluded=self.excluded,
            undetectable=self.undetectable,
            rounds=len(found),
            others=tuple((name,) for name in self.accused[1:]),
            titles=(words,) if found else (),
            reason=reason,
            proven=False,
        )


@dataclass
class _Sums:
    """Per input: <e,d>, <d,d>, |e - d|^2, and <a,d> of the right side's rounding error a; taps weigh 1/noise^2."""

    along: list[float]
    size: list[float]
    left: list[float]
    bias: list[float]
    grown: float = 1.0


def predict(
    config: ViTConfig,
    weights: Mapping[str, Tensor],
    images: Sequence[Tensor],
    catalogue: Sequence[str] = tuple(FAULTS),
    layer: int | None = None,
    *,
    kept: bool = True,
) -> Predictions:
    """Run the reference ViT on every input, without faults and with each that changes values.

    Args:
        config: the reference ViT that computes what is right.
        weights: its canonical weights.
        images: the inputs.
        catalogue: the faults to try.
        layer: try them in this block alone; otherwise everywhere.
        kept: whether to keep what each gives, for many sides to be held against; otherwise it is made anew when asked.
    """
    exact = {name: w.detach().double() for name, w in weights.items()}
    templates: dict[str, ViT] = {}

    def run(knobs: Knobs) -> tuple[dict[str, Tensor], ...]:
        rebuilt = Rebuilt(knobs, exact, backward=False, templates=templates)
        return tuple(_values(rebuilt.run(x)) for x in images)

    tried: dict[str, Knobs] = {}
    for name in catalogue:
        fault = FAULTS[name]
        layers = None if layer is None else (layer,)
        knobs = fault.apply(Knobs(config), layers) if fault.visible in ("always", "never") else None
        if knobs is not None:
            tried[name if layer is None else f"{name}@{layer}"] = knobs
    anew = _Anew(tried, run)
    faulty = {name: found for name in tried if (found := anew.get(name)) is not None} if kept else anew
    return Predictions(run(Knobs(config)), faulty)


def regress(predictions: Predictions, right_runs: Sequence[Left], wrong_runs: Sequence[Left]) -> Regression:
    """Regress the difference of two sides on what every fault would change.

    Args:
        predictions: what is right, and what each fault gives, on the same inputs: six at least.
        right_runs: what the side that is right did with them in the precision; taps and output are used.
        wrong_runs: what the side under suspicion did in the same precision.

    Raises:
        ValueError: too few inputs.
    """
    base = predictions.base
    if len(base) < LEAST_INPUTS:
        raise ValueError(f"{len(base)} inputs: a deviation needs {LEAST_INPUTS} at least")
    right = [_values(r) for r in right_runs]
    wrong = [_values(r) for r in wrong_runs]
    weight = {n: 1 / v for n, v in _noise(base, right).items() if v > 0}
    apart = [
        {n: w[n] - r[n] for n in weight if n in w and w[n].shape == r[n].shape}
        for w, r in zip(wrong, right, strict=True)
    ]
    terms = sum(len(each) for each in apart)
    total = sum(weight[n] * _square(e) for each in apart for n, e in each.items())
    rounding = [{n: r[n] - b[n] for n in each} for r, b, each in zip(right, base, apart, strict=True)]
    seen = _Seen([_flat(e, weight) for e in apart], [_flat(r, weight) for r in rounding])
    sums = {
        name: _sum(base, faulty, apart, seen, weight)
        for name in predictions.faulty
        if (faulty := predictions.faulty.get(name)) is not None
    }
    estimates = {name: _estimate(name, s, terms) for name, s in sums.items()}

    def alike(one: str, two: str) -> bool:
        # The second is the one that all are compared with.
        against = predictions.faulty[two]
        return _cosine(base, predictions.faulty[one], against, weight) > COLLINEAR

    accused = _accused(estimates, sums, alike)
    known = [e for e in estimates.values() if e.reach >= ACCUSE]
    excluded = tuple(e.name for e in known if e.name not in accused and abs(e.beta - 1) * e.reach >= ACCUSE)
    # What changes nothing here is no fault of this network.
    unknown = tuple(e.name for e in estimates.values() if e.size > 0 and e.name not in {*accused, *excluded})
    ratio = (total / max(terms, 1)) ** 0.5
    return Regression(tuple(estimates.values()), ratio, accused, excluded, unknown, _first_block(apart, weight))


def regress_deeper(
    config: ViTConfig,
    weights: Mapping[str, Tensor],
    images: Sequence[Tensor],
    right: Sequence[Left],
    wrong: Sequence[Left],
    predictions: Predictions | None = None,
    local: dict[int, Predictions] | None = None,
) -> Regression:
    """Regress on faults everywhere and, if none stands out of a difference that does, on those of one block alone.

    Args:
        config: the reference ViT that computes what is right.
        weights: its canonical weights.
        images: the inputs, six at least.
        right: what the side that is right did with them.
        wrong: what the side under suspicion did.
        predictions: of faults everywhere, if they are known.
        local: of faults of one block alone, by block: those that are known, and those that this makes.
    """
    known = predictions or predict(config, weights, images, kept=False)
    first = regress(known, right, wrong)
    if first.accused or first.layer is None:
        return first
    made = {} if local is None else local
    if first.layer not in made:
        made[first.layer] = predict(config, weights, images, layer=first.layer, kept=predictions is not None)
    every: Any = ChainMap(known.faulty, made[first.layer].faulty)  # type: ignore[arg-type]
    return regress(Predictions(known.base, every), right, wrong)


def _title(name: str) -> str:
    fault, _, layer = name.partition("@")
    return FAULTS[fault].title + (f", in block {layer}" if layer else "")


def _first_block(apart: Sequence[Mapping[str, Tensor]], weight: Mapping[str, float]) -> int | None:
    for name in apart[0]:
        if sum(weight[name] * _square(each[name]) for each in apart) / len(apart) > FLOOR**2:
            return layer_in(name)
    return None


def _values(run: Left) -> dict[str, Tensor]:
    return {**{n: x.double() for n, x in run.taps.items()}, "output": run.output.double()}


def _square(x: Tensor) -> float:
    return float(x.square().sum())


def _noise(base: Sequence[Mapping[str, Tensor]], right: Sequence[Mapping[str, Tensor]]) -> dict[str, float]:
    """Return the mean square rounding error of each tap over the inputs."""
    names = [n for n in base[0] if n in right[0] and base[0][n].shape == right[0][n].shape]
    return {n: sum(_square(r[n] - b[n]) for b, r in zip(base, right, strict=True)) / len(base) for n in names}


@dataclass(frozen=True)
class _Seen:
    """Per input, all taps in one vector and divided by their noise: the difference, and the right side's rounding."""

    apart: list[Tensor]
    rounding: list[Tensor]


def _flat(values: Mapping[str, Tensor], weight: Mapping[str, float]) -> Tensor:
    import torch

    return torch.cat([(x * weight[n] ** 0.5).flatten() for n, x in values.items()])


def _sum(
    base: Sequence[Mapping[str, Tensor]],
    faulty: Sequence[Mapping[str, Tensor]],
    apart: Sequence[Mapping[str, Tensor]],
    seen: _Seen,
    weight: Mapping[str, float],
) -> _Sums:
    out = _Sums([], [], [], [])
    for b, f, each, e, own in zip(base, faulty, apart, seen.apart, seen.rounding, strict=True):
        fits = [n in f and f[n].shape == x.shape for n, x in each.items()]
        # What has another shape counts as no change, and as a difference that nothing explains.
        d = _flat({n: f[n] - b[n] if ok else x * 0 for (n, x), ok in zip(each.items(), fits, strict=True)}, weight)
        out.along.append(float(e @ d))
        out.size.append(float(d @ d))
        out.left.append(_square(e - d) if all(fits) else inf)
        out.bias.append(float(own @ d))
        growth = (_square(f[n]) / max(_square(b[n]), 1e-300) for n, ok in zip(each, fits, strict=True) if ok)
        out.grown = max(out.grown, max(growth, default=1.0) ** 0.5)
    return out


def _estimate(name: str, s: _Sums, terms: int) -> Estimate:
    whole, count = sum(s.size), len(s.size)
    if whole <= 0 or whole == inf or sum(s.left) == inf:
        return Estimate(name, 0.0, 0.0, 0.0 if whole <= 0 else inf, whole, inf)
    beta = sum(s.along) / whole
    # The deviation of a ratio of sums over inputs that have nothing to do with each other.
    spread = sum((a - beta * d) ** 2 for a, d in zip(s.along, s.size, strict=True)) * count / (count - 1)
    deviation = max(spread**0.5 / whole, 1e-12)
    # Errors that always point the same way add up, others do not.
    own = max(abs(sum(s.bias)), sum(x * x for x in s.bias) ** 0.5) / whole
    size, left = (whole / max(terms, 1)) ** 0.5, (sum(s.left) / max(terms, 1)) ** 0.5
    return Estimate(name, beta, beta / deviation, 1 / max(deviation, own), size, left, s.grown)


def _accused(
    estimates: Mapping[str, Estimate], sums: Mapping[str, _Sums], alike: Callable[[str, str], bool]
) -> tuple[str, ...]:
    """Return the faults that stand out of the noise, the closest first, with those that cannot be told from it.

    Faults that change the same by other amounts (one eps and another) differ in the slope alone; where both sides round
    alike a part of every change vanishes, and the slope is no measure of so little: the direction is.
    """
    able = [
        e
        for e in estimates.values()
        if abs(e.z) >= ACCUSE and abs(e.beta - 1) <= (LOOSE if e.reach < 1 else SLOPE) and e.left <= FLOOR * e.grown
    ]
    if not able:
        return ()
    little = all(e.reach < 1 for e in able)
    left = {e.name: _aside(sums[e.name], e.beta) if little else sums[e.name].left for e in able}
    able.sort(key=lambda e: sum(left[e.name]))
    first = able[0]
    together = {e.name for e in able if e is first or _deviations(left[e.name], left[first.name]) < BETTER}
    near = [e.name for e in estimates.values() if first.beta / ALIKE <= e.beta <= first.beta * ALIKE or e in able]
    together |= {name for name in near if name != first.name and alike(name, first.name)}
    return tuple(sorted(together, key=lambda name: sum(left[name]) if name in left else estimates[name].left))


def _aside(s: _Sums, beta: float) -> list[float]:
    """Return what remains of each input's difference when the fault is taken out at the slope that fits best."""
    return [
        left - 2 * (beta - 1) * a + (beta * beta - 1) * d for left, a, d in zip(s.left, s.along, s.size, strict=True)
    ]


def _cosine(
    base: Sequence[Mapping[str, Tensor]],
    one: Sequence[Mapping[str, Tensor]],
    two: Sequence[Mapping[str, Tensor]],
    weight: Mapping[str, float],
) -> float:
    """Return the cosine of the angle between what two faults change, over all inputs; 0 where a shape differs."""
    dot = left = right = 0.0
    for b, f, g in zip(base, one, two, strict=True):
        if any(n not in f or n not in g or not f[n].shape == g[n].shape == b[n].shape for n in weight):
            return 0.0
        x, y = (_flat({n: h[n] - b[n] for n in weight}, weight) for h in (f, g))
        dot, left, right = dot + float(x @ y), left + float(x @ x), right + float(y @ y)
    return dot / (left * right) ** 0.5 if left and right else 0.0


def _deviations(one: Sequence[float], two: Sequence[float]) -> float:
    apart = [a - b for a, b in zip(one, two, strict=True)]
    mean = sum(apart) / len(apart)
    spread = sum((d - mean) ** 2 for d in apart) / (len(apart) * (len(apart) - 1))
    return mean / spread**0.5 if spread > 0 else (inf if mean > 0 else 0.0)
