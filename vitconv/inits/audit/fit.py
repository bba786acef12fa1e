"""Which scheme fits a network best, over all its tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from vitconv.errors import Refused
from vitconv.inits.audit.conform import Conformity, conforms
from vitconv.inits.audit.measure import Measured
from vitconv.inits.base.architecture import Architecture
from vitconv.inits.base.distribution import Distribution
from vitconv.inits.base.scheme import Scheme


@dataclass(frozen=True)
class Fitted:
    """How one scheme fits: what it declares, and the outcome for every tensor."""

    scheme: Scheme
    declared: Mapping[str, Distribution]
    outcomes: Mapping[str, Conformity]

    @property
    def good(self) -> int:
        """Return the number of tensors that fit."""
        return sum(outcome.good for outcome in self.outcomes.values())

    @property
    def share(self) -> float:
        """Return the share of tensors that fit."""
        return self.good / max(len(self.outcomes), 1)

    @property
    def misfits(self) -> dict[str, Conformity]:
        """Return {canonical name: outcome} of the tensors that do not fit."""
        return {name: outcome for name, outcome in self.outcomes.items() if not outcome.good}


def rank(arch: Architecture, measured: Mapping[str, Measured], schemes: Mapping[str, Scheme]) -> list[Fitted]:
    """Return every scheme with how it fits, the best first; equal ones in the order of their names.

    A scheme that cannot be worked out for this network (no grid for its table, say) is left out.
    """
    found = []
    # Schemes share many of their distributions.
    tried: dict[tuple[str, Distribution], Conformity] = {}
    for scheme in schemes.values():
        try:
            declared = scheme.declared(arch)
        except Refused:
            continue
        outcomes = {}
        for name, m in measured.items():
            key = (name, declared[name])
            if key not in tried:
                tried[key] = conforms(m, declared[name])
            outcomes[name] = tried[key]
        found.append(Fitted(scheme, declared, outcomes))
    return sorted(found, key=lambda fit: -fit.good)


def best(ranked: list[Fitted]) -> list[Fitted]:
    """Return the schemes that fit best: several when the tensors cannot tell them apart."""
    return [fit for fit in ranked if fit.good == ranked[0].good] if ranked else []
