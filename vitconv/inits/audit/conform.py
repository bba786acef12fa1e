"""Does a tensor come from a distribution? Tests that know the size, and an effect too small to matter never fails.

With half a million elements a difference of half a percent is certain and means nothing; with 192 a difference of a
quarter cannot be seen. So a test fails only when it is both certain and large.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from vitconv.inits.audit.measure import Measured
from vitconv.inits.base.distribution import Distribution

# Bonferroni over about 760 tests (152 tensors of a ViT-Ti, 5 tests each) at a family level of 1 %.
CERTAIN = 4.36

# Effects below these do not fail, however certain: log ratio of the stds, mean in stds, kurtosis.
LARGE: Mapping[str, float] = MappingProxyType({"scale": 0.05, "mean": 0.1, "shape": 0.12})
_RARE = math.log(1e-6)

Outcome = Literal["ok", "fail"]


@dataclass(frozen=True, slots=True)
class Conformity:
    """The outcome, the test that decided, its effect (log ratio, stds, ...) and the figures in words."""

    outcome: Outcome
    test: str = ""
    effect: float = 0.0
    text: str = ""

    @property
    def good(self) -> bool:
        """Return True when nothing speaks against the distribution."""
        return self.outcome == "ok"


OK = Conformity("ok")


def conforms(m: Measured, d: Distribution) -> Conformity:
    """Test a measured tensor against a fully specified distribution; the first test that fails is returned."""
    if m.bad:
        return Conformity("fail", "finite", float(m.bad), f"{m.bad} of {m.n} are NaN or infinite")
    if d.family == "constant":
        return _constant(m, d)
    if m.constant and m.n > 1:
        return Conformity("fail", "constant", 1.0, f"{m.low:g} everywhere, expected {d.text}")
    if d.family == "table":
        return _table(m, d)
    for test in (_bounds, _scale, _mean, _shape, _tails):
        found = test(m, d)
        if not found.good:
            return found
    return OK


def _constant(m: Measured, d: Distribution) -> Conformity:
    slack = m.eps * abs(d.centre)
    if abs(m.low - d.centre) <= slack and abs(m.high - d.centre) <= slack:
        return OK
    off = max(abs(m.low - d.centre), abs(m.high - d.centre))
    found = f"{m.low:.4g} everywhere" if m.constant else f"std {m.std:.4g}"
    return Conformity("fail", "constant", off, f"{found}, expected {d.text}")


def _table(m: Measured, d: Distribution) -> Conformity:
    off = max(abs(m.mean - d.mean), abs(m.std - d.std))
    # A sample of a large table has other moments than the whole by a few percent.
    if off <= (1e-3 if m.sampled == m.n else 0.03) * max(1.0, d.std) and m.high <= d.high and m.low >= d.low:
        return OK
    return Conformity("fail", "table", off, f"mean {m.mean:.3g} and std {m.std:.3g}, expected {d.text}")


def _bounds(m: Measured, d: Distribution) -> Conformity:
    slack = 1.0 + max(1e-5, m.eps)
    if m.high <= d.high * slack and m.low >= d.low * slack:
        return OK
    far = m.high if m.high > d.high else m.low
    return Conformity("fail", "bound", far / d.std, f"{far:.4g} is outside {d.low:.4g} to {d.high:.4g}")


def _scale(m: Measured, d: Distribution) -> Conformity:
    if m.n < 8 or d.std == 0.0:
        return OK
    effect = math.log(m.std / d.std) if m.std > 0 else -math.inf
    # Wilson and Hilferty's cube root: the variance of few values is too skewed for its logarithm to be normal.
    freedom = 2.0 * m.sampled / (d.kurtosis - 1.0)
    spread = 2.0 / (9.0 * freedom)
    z = ((m.std / d.std) ** (2.0 / 3.0) - (1.0 - spread)) / math.sqrt(spread)
    if abs(z) <= CERTAIN or abs(effect) <= LARGE["scale"]:
        return OK
    return Conformity("fail", "scale", effect, f"std {m.std:.4g} is {m.std / d.std:.3f} of {d.std:.4g}")


def _mean(m: Measured, d: Distribution) -> Conformity:
    effect = (m.mean - d.mean) / d.std
    if abs(effect) <= max(CERTAIN / math.sqrt(m.sampled), LARGE["mean"]):
        return OK
    return Conformity("fail", "mean", effect, f"mean {m.mean:.4g} is {effect:.2f} std away")


def _shape(m: Measured, d: Distribution) -> Conformity:
    if m.n < 64:
        return OK
    effect = m.kurtosis - d.kurtosis
    # sqrt(24/n) is the spread for a normal; bounded families have less.
    if abs(effect) <= max(CERTAIN * math.sqrt(24.0 / m.sampled), LARGE["shape"]):
        return OK
    return Conformity("fail", "shape", effect, f"kurtosis {m.kurtosis:.2f}, expected {d.kurtosis:.2f}")


def _tails(m: Measured, d: Distribution) -> Conformity:
    """Test the largest |value|: too small by chance less than once in a million, or an outlier as rare."""
    largest = max(abs(m.low), abs(m.high))
    outside = outside_of(d, largest)
    if outside >= 1.0 or m.n < 16:
        return OK
    if m.n * math.log1p(-outside) < _RARE:
        return Conformity("fail", "bound", m.reach, f"nothing above {m.reach:.3f} std, too little for {d.text}")
    # Half precision rounds the rarest draws of careless generators to the edge; one such value is an outlier.
    if m.n * outside < 1e-6 and d.family != "uniform" and largest < d.high:
        return Conformity("fail", "outlier", m.reach, f"{largest:.4g} is {m.reach:.1f} std away")
    return OK


def outside_of(d: Distribution, x: float) -> float:
    """Return the probability of |value| > x, for a distribution around 0."""
    if d.family == "uniform":
        return max(0.0, 1.0 - x / d.high)
    tail = math.erfc(x / (d.sigma * math.sqrt(2.0)))
    if d.family == "normal":
        return tail
    edge = math.erfc(min(d.high, 40 * d.sigma) / (d.sigma * math.sqrt(2.0)))
    return max(0.0, (tail - edge) / (1.0 - edge))
