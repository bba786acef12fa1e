"""The distributions that init schemes draw from, each with its exact moments."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

from vitconv.inits.base.fans import Fans
from vitconv.inits.base.sincos import Frequencies, Periods, Table

_ROOT_2PI = math.sqrt(2.0 * math.pi)

# Standard deviation of the unit normal cut at +-2, as flax and timm write it down.
TWO_SIGMA = 0.87962566103423978

FAMILIES: Mapping[str, str] = MappingProxyType(
    {
        "constant": "one value",
        "normal": "normal",
        "truncated": "normal, cut at `low` and `high`: what falls outside is drawn again",
        "uniform": "uniform between `low` and `high`",
        "table": "a fixed table, the same for every seed",
    }
)


@dataclass(frozen=True, slots=True)
class Distribution:
    """One distribution: its family (see `FAMILIES`), its parameters, and how it is said in words.

    Attributes:
        family: a key of `FAMILIES`.
        centre: the value of a constant, the mean of every other parent.
        sigma: standard deviation of the normal, ahead of any cut.
        low: the smallest value there can be; `high` the largest. Both are values, not multiples of sigma.
        text: the formula with its numbers.
        table: which fixed table.
    """

    family: str
    centre: float = 0.0
    sigma: float = 0.0
    low: float = -math.inf
    high: float = math.inf
    text: str = ""
    table: Table | Periods | Frequencies | None = None

    @property
    def mean(self) -> float:
        """Return the exact mean."""
        if self.family == "table":
            return self._known.mean
        if self.family == "truncated":
            return self.centre + self.sigma * _cut_moment(1, self._a, self._b)
        return (self.low + self.high) / 2 if self.family == "uniform" else self.centre

    @property
    def std(self) -> float:
        """Return the exact standard deviation, any cut included."""
        if self.family == "table":
            return self._known.std
        if self.family == "truncated":
            first = _cut_moment(1, self._a, self._b)
            return self.sigma * math.sqrt(max(_cut_moment(2, self._a, self._b) - first * first, 0.0))
        if self.family == "uniform":
            return (self.high - self.low) / math.sqrt(12.0)
        return self.sigma

    @property
    def kurtosis(self) -> float:
        """Return the exact fourth standardised moment: 3 for a normal, 1.8 for a uniform; nan for a constant."""
        if self.family in ("constant", "table"):
            return math.nan
        if self.family == "uniform":
            return 1.8
        if self.family == "normal":
            return 3.0
        m1, m2, m3, m4 = (_cut_moment(k, self._a, self._b) for k in (1, 2, 3, 4))
        central = m4 - 4 * m1 * m3 + 6 * m1 * m1 * m2 - 3 * m1**4
        return central / (m2 - m1 * m1) ** 2

    @property
    def reach(self) -> float:
        """Return the largest |x - mean| in standard deviations; infinite for a normal."""
        if self.std == 0.0:
            return 0.0
        return max(self.high - self.mean, self.mean - self.low) / self.std

    @property
    def exact(self) -> bool:
        """Return True when every seed gives the same values."""
        return self.family in ("constant", "table")

    @property
    def _a(self) -> float:
        return (self.low - self.centre) / self.sigma

    @property
    def _b(self) -> float:
        return (self.high - self.centre) / self.sigma

    @property
    def _known(self) -> Table | Periods | Frequencies:
        assert self.table is not None
        return self.table


def constant(value: float, text: str = "") -> Distribution:
    """Return the distribution of one value."""
    return Distribution("constant", centre=value, low=value, high=value, text=text or f"{value:g}")


def normal(std: float, text: str = "") -> Distribution:
    """Return N(0, std)."""
    return Distribution("normal", sigma=std, text=text or f"N(0, {std:.4g})")


def truncated_absolute(std: float, low: float = -2.0, high: float = 2.0) -> Distribution:
    """Return N(0, std) cut at the values `low` and `high`: torch's and timm's trunc_normal_.

    At std .02 the default cut is at 100 sigma, so nothing is cut.
    """
    return Distribution(
        "truncated", sigma=std, low=low, high=high, text=f"N(0, {std:.4g}) cut at the values {low:g} and {high:g}"
    )


def truncated_sigma(std: float, cut: float = 2.0, *, compensated: bool = False) -> Distribution:
    """Return N(0, std) cut at +-`cut` sigma; `compensated` widens it first, so that what is left has std `std`.

    Not compensated at 2: timm's trunc_normal_tf_, true std .8796 std. Compensated: flax's lecun_normal.
    """
    sigma = std / cut_factor(cut) if compensated else std
    how = f"widened to have std {std:.4g}" if compensated else f"true std {std * cut_factor(cut):.4g}"
    return Distribution(
        "truncated",
        sigma=sigma,
        low=-cut * sigma,
        high=cut * sigma,
        text=f"N(0, {sigma:.4g}) cut at {cut:.4g} sigma, {how}",
    )


def uniform(bound: float, text: str = "") -> Distribution:
    """Return U(-bound, bound)."""
    return Distribution("uniform", low=-bound, high=bound, text=text or f"U(±{bound:.4g})")


def fixed(table: Table | Periods | Frequencies) -> Distribution:
    """Return a fixed table."""
    low, high = (1.0, table.theta) if isinstance(table, Periods) else (-1.0, 1.0)
    return Distribution("table", low=low, high=high, text=table.text, table=table)


def xavier_uniform(fans: Fans, gain: float = 1.0) -> Distribution:
    """Return U(+-gain sqrt(6/(fan_in+fan_out))) (Glorot & Bengio, 2010, equation 16)."""
    return uniform(gain * math.sqrt(6.0 / fans.total), f"xavier uniform{_gain(gain)}, {fans.text}")


def xavier_normal(fans: Fans, gain: float = 1.0) -> Distribution:
    """Return N(0, gain sqrt(2/(fan_in+fan_out))) (Glorot & Bengio, 2010)."""
    return normal(gain * math.sqrt(2.0 / fans.total), f"xavier normal{_gain(gain)}, {fans.text}")


def lecun_normal(fans: Fans) -> Distribution:
    """Return the normal cut at 2 sigma and widened to std sqrt(1/fan_in): flax's lecun_normal, timm's of that name."""
    return truncated_sigma(math.sqrt(1.0 / fans.fan_in), 2.0, compensated=True)


def torch_default(fans: Fans) -> Distribution:
    """Return U(+-1/sqrt(fan_in)): kaiming uniform with a = sqrt 5, nn.Linear's and nn.Conv2d's weight and bias."""
    return uniform(fans.fan_in**-0.5, f"torch default U(±1/sqrt {fans.fan_in})")


def cut_factor(cut: float) -> float:
    """Return the std of the unit normal cut at +-`cut`: sqrt(1 - 2 c phi(c) / (2 Phi(c) - 1))."""
    return math.sqrt(_cut_moment(2, -cut, cut))


def _gain(gain: float) -> str:
    return "" if gain == 1.0 else f" x {gain:.4g}"


def _phi(x: float) -> float:
    return math.exp(-0.5 * x * x) / _ROOT_2PI if abs(x) < 40.0 else 0.0


def _mass(a: float, b: float) -> float:
    return 0.5 * (math.erf(b / math.sqrt(2.0)) - math.erf(a / math.sqrt(2.0)))


@cache
def _cut_moment(order: int, a: float, b: float) -> float:
    """Return E[z^order] of the unit normal cut at a and b, by the usual recursion over two orders."""
    mass = _mass(a, b)
    before, now = 0.0, 1.0
    for k in range(1, order + 1):
        edge = _edge(a, k - 1) - _edge(b, k - 1)
        before, now = now, (k - 1) * before + edge / mass
    return now


def _edge(x: float, power: int) -> float:
    phi = _phi(x)
    return 0.0 if phi == 0.0 else x**power * phi
