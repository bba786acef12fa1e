"""What an init scheme is: a table from roles to distributions, and what it needs of the architecture."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from vitconv.errors import LayoutError, Refused
from vitconv.inits.base.architecture import PLACEMENTS, Architecture, Site
from vitconv.inits.base.distribution import Distribution

Maker = Callable[[Site], Distribution]
Level = Literal["ok", "warn", "refuse"]


@dataclass(frozen=True, slots=True)
class Fit:
    """Whether a scheme goes with one norm placement, and the reason when it does not quite."""

    level: Level
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Need:
    """Something else the architecture must have.

    Attributes:
        what: in a few words, as they stand in a message.
        met: whether the architecture has it.
        reason: why the scheme makes no sense without it.
        change: what would give it, as an option of `vitconv init`, or "" when nothing does.
    """

    what: str
    met: Callable[[Architecture], bool]
    reason: str
    change: str = ""


@dataclass(frozen=True)
class Scheme:
    """One init scheme.

    Attributes:
        name: the name on the command line.
        title: what it is, in words.
        source: paper and equation, or repository, file and version.
        table: {canonical template, or role: distribution, or what makes one for a site}; a template wins.
        fits: {norm placement: Fit}; a placement that is left out fits.
        needs: what else it needs.
        notes: what it leaves to the network or to the training, each a sentence.
        balanced: it claims DeepNet's bound, so `bound` must come out near 1.
        quirk: it reproduces what a library does, fault included; says the fault.
    """

    name: str
    title: str
    source: str
    table: Mapping[str, Distribution | Maker]
    fits: Mapping[str, Fit]
    needs: tuple[Need, ...] = ()
    notes: tuple[str, ...] = ()
    balanced: bool = False
    quirk: str = ""

    def at(self, site: Site) -> Distribution:
        """Return the distribution of one tensor.

        Raises:
            LayoutError: the scheme says nothing of this tensor.
        """
        # What is said of a block is said of one in a stage too.
        inside = site.template.removeprefix("stages.{s}.")
        found = self.table.get(site.template, self.table.get(inside, self.table.get(site.role)))
        if found is None:
            raise LayoutError(f"the init scheme {self.name} says nothing of {site.name} (role {site.role})")
        return found if isinstance(found, Distribution) else found(site)

    def declared(self, arch: Architecture) -> dict[str, Distribution]:
        """Return {canonical name: distribution} of every tensor."""
        return {site.name: self.at(site) for site in arch.sites()}

    def check(self, arch: Architecture) -> tuple[str, ...]:
        """Return what should be known before training, one sentence each.

        Raises:
            Refused: the scheme does not go with this architecture; every reason is given, with what would change it.
        """
        problems, notes = [], []
        placement = arch.placement
        if placement is None:
            wrong = [p for p in PLACEMENTS[:-1] if self._fit(p).level == "refuse"]
            if wrong:
                good = [p for p in PLACEMENTS if p not in wrong and p != "none"]
                problems.append(
                    f"where the norms stand is unknown, and {self.name} does not go with {', '.join(wrong)};"
                    + (f" say --set norm_placement={'|'.join(good)}" if good else "")
                )
            else:
                notes.append("where the norms stand is unknown: whether the scheme fits was not checked")
        elif (fit := self._fit(placement)).level == "refuse":
            good = [p for p in PLACEMENTS if self._fit(p).level == "ok"]
            problems.append(f"the norms stand {placement}: {fit.reason}{_offer('norm', good)}")
        elif fit.level == "warn":
            notes.append(f"norms {placement}: {fit.reason}")
        for need in self.needs:
            if not need.met(arch):
                change = f"; {need.change} changes the network so" if need.change else ""
                problems.append(f"it needs {need.what}: {need.reason}{change}")
        if problems:
            raise Refused(f"the init scheme {self.name} does not fit this network:\n  " + "\n  ".join(problems))
        return (*notes, *self.notes, *((f"reproduced with its fault: {self.quirk}",) if self.quirk else ()))

    def _fit(self, placement: str) -> Fit:
        return self.fits.get(placement, Fit("ok"))


def _offer(option: str, values: list[str]) -> str:
    if not values:
        return ""
    return f"; --set {option}={'|'.join(values)} changes the network so"
