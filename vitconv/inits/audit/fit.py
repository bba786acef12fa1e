"""Which scheme fits a network best, over all its tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from vitconv.errors import LayoutError, Refused
from vitconv.inits.audit.conform import Conformity, conforms
from vitconv.inits.audit.measure import Measured
from vitconv.inits.base.architecture import Architecture, Site
from vitconv.inits.base.distribution import Distribution
from vitconv.inits.base.scheme import Scheme
from vitconv.layout.blocks import block_of

# A scheme whose share of tensors that fit, in a few blocks, is this much below the best's is not tried on the others.
NEAR = 0.1


@dataclass(frozen=True)
class Fitted:
    """How one scheme fits: what it declares, and the outcome for every tensor; of a few blocks if it is far off."""

    scheme: Scheme
    declared: Mapping[str, Distribution]
    outcomes: Mapping[str, Conformity]

    @cached_property
    def good(self) -> int:
        """Return the number of tensors that fit."""
        return sum(outcome.good for outcome in self.outcomes.values())

    @property
    def share(self) -> float:
        """Return the share of tensors that fit."""
        return self.good / max(len(self.outcomes), 1)

    @cached_property
    def misfits(self) -> dict[str, Conformity]:
        """Return {canonical name: outcome} of the tensors that do not fit."""
        return {name: outcome for name, outcome in self.outcomes.items() if not outcome.good}


def rank(arch: Architecture, measured: Mapping[str, Measured], schemes: Mapping[str, Scheme]) -> list[Fitted]:
    """Return every scheme with how it fits, the best first; equal ones in the order of their names.

    All are tried on the first, the middle and the last block and on what stands outside; those that are near the best
    there, on every tensor. A scheme that cannot be worked out for this network (no grid for its table, nothing said of
    one of its tensors) is left out.
    """
    blocks = arch.blocks
    some = {blocks[0], blocks[len(blocks) // 2], blocks[-1]} if blocks else set[str]()
    few = [site for site in arch.sites() if (block := block_of(site.name)) is None or block in some]
    # Schemes share many of their distributions.
    tried: dict[tuple[str, Distribution], Conformity] = {}
    found = [fit for s in schemes.values() if (fit := _fitted(s, few, measured, tried)) is not None]
    near = max((fit.share for fit in found), default=0.0) - NEAR
    whole = []
    for fit in found:
        full = _fitted(fit.scheme, arch.sites(), measured, tried) if fit.share >= near else None
        whole.append(fit if full is None else full)
    # What was only tried on a few blocks comes after what was tried on all.
    return sorted(whole, key=lambda fit: (-len(fit.outcomes), -fit.share))


def _fitted(
    scheme: Scheme,
    sites: Iterable[Site],
    measured: Mapping[str, Measured],
    tried: dict[tuple[str, Distribution], Conformity],
) -> Fitted | None:
    declared: dict[str, Distribution] = {}
    outcomes: dict[str, Conformity] = {}
    for site in sites:
        name = site.name
        try:
            d = declared[name] = scheme.at(site)
        except (Refused, LayoutError):
            return None
        key = (name, d)
        if key not in tried:
            tried[key] = conforms(measured[name], d)
        outcomes[name] = tried[key]
    return Fitted(scheme, declared, outcomes)


def best(ranked: list[Fitted]) -> list[Fitted]:
    """Return the schemes that fit best: several when the tensors cannot tell them apart."""
    first = ranked[0] if ranked else None
    return [fit for fit in ranked if first and fit.good == first.good and len(fit.outcomes) == len(first.outcomes)]
