"""Was it trained? Constants first, exactly; then the spectrum. Marginal moments see nothing for the first steps.

After one step of AdamW at 5e-4 every bias has moved by about 5e-4, while std, kurtosis and spectrum have moved by less
than a thousandth; after a hundred steps the largest singular value is 1.15 times the edge and more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from vitconv.inits.audit.conform import conforms
from vitconv.inits.audit.fit import Fitted
from vitconv.inits.audit.measure import Measured
from vitconv.inits.base.distribution import torch_default
from vitconv.inits.base.fans import flat_fans
from vitconv.layout.blocks import block_of

State = Literal["never trained", "trained", "partly trained", "undecided"]

LEARNED = 1.05
FRESH = 1.03
# The largest of a million of N(0, 1e-6), as big_vision starts MLP biases; one step of AdamW at 1e-5 goes beyond it.
TINY = 6e-6
# Vectors too, but zero in some codebases, drawn in others and N(0, 1) in a few: a token that is not 0 proves nothing.
_TOKENS = frozenset({"embed.cls", "embed.dist", "embed.mask", "embed.pos_cls", "embed.pos_dist", "pool.probe"})


@dataclass(frozen=True)
class Training:
    """The verdict, its reason, and the tensors that still are as an init leaves them."""

    state: State
    reason: str
    fresh: tuple[str, ...] = ()


def training(fit: Fitted, measured: Mapping[str, Measured]) -> Training:
    """Tell whether a network was trained, by the scheme that fits it best."""
    # A matrix of zeros is the scheme's choice, and another scheme's draw; what is not finite says nothing.
    close = fit.share > 0.95
    fixed = [
        name
        for name, d in fit.declared.items()
        if d.family == "constant" and name in measured and not measured[name].bad
        if close or (len(measured[name].shape) < 2 and name not in _TOKENS)
    ]
    # Norms are 1 and 0 in every scheme but one, biases 0 in most: what is constant is as an init left it.
    still = [name for name in fixed if measured[name].constant]
    moved = [name for name in fixed if not measured[name].constant and not _made_so(name, measured)]
    spectra = {name: m.edge for name, m in measured.items() if m.edge == m.edge}
    learned = [name for name, edge in spectra.items() if edge > max(LEARNED, _by_chance(measured[name]))]
    # A matrix that looks fresh beside a bias that moved was only trained little.
    fresh = tuple(name for name in measured if name in still or _unlearned(measured[name], moved))
    if not moved and not learned:
        if fit.share > 0.95:
            return Training("never trained", _at_init(fit, still, spectra), fresh)
        if fixed:
            return Training("undecided", f"no scheme fits, yet all {len(still)} constants are untouched", fresh)
        return Training("undecided", "no tensor has a constant to compare with, and no scheme fits", fresh)
    reason = f"{len(moved)} of {len(fixed)} tensors that start constant have moved"
    if spectra:
        reason += f"; {len(learned)} of {len(spectra)} spectra reach beyond the edge of independent entries"
    blocks = [name for name in measured if block_of(name) is not None]
    cold = [name for name in blocks if name in fresh]
    if len(moved) < len(fixed) and cold and len(still) > 0.1 * len(fixed):
        return Training("partly trained", reason, fresh)
    return Training("trained", reason, fresh)


def _unlearned(m: Measured, moved: list[str]) -> bool:
    """Say whether a matrix looks drawn, and no bias beside it has moved."""
    if m.edge != m.edge or m.edge >= max(FRESH, _by_chance(m)):
        return False
    return _iid(m) and m.name.removesuffix("weight") + "bias" not in moved


def _by_chance(m: Measured) -> float:
    """Return how far independent entries reach once in ten thousand times: Tracy and Widom's law, which is wide at 4.

    Of 24 rows and columns that is 15 % beyond the edge, of 768 a percent and a half.
    """
    rows, columns = (math.sqrt(n) for n in m.shape)
    return 1.0 + 0.5 * 4.0 * (1.0 / rows + 1.0 / columns) ** (1.0 / 3.0) / (rows + columns)


def _made_so(name: str, measured: Mapping[str, Measured]) -> bool:
    """Say whether a bias is random from the start, so no sign of training: as torch draws it, or N(0, 1e-6)."""
    if max(abs(measured[name].low), abs(measured[name].high)) < TINY:
        return True
    weight = measured.get(name.removesuffix("bias") + "weight")
    if not name.endswith(".bias") or weight is None or len(weight.shape) < 2:
        return False
    return conforms(measured[name], torch_default(flat_fans(weight.shape))).good


def _iid(m: Measured) -> bool:
    return m.kurtosis < 3.3


def _at_init(fit: Fitted, still: list[str], spectra: Mapping[str, float]) -> str:
    text = f"{fit.good} of {len(fit.outcomes)} tensors fit {fit.scheme.name}, {len(still)} constants are exact"
    return text + (f", the largest spectrum is {max(spectra.values()):.3f} of the edge" if spectra else "")
