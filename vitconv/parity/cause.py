"""What a search for the cause found, in names and in words."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from vitconv.parity.faults.error import Residual
from vitconv.parity.faults.flat import FlatConfig
from vitconv.parity.locus import Combination
from vitconv.parity.search import Search, State


@dataclass(frozen=True)
class Cause:
    """What was found.

    Attributes:
        found: the faults, all at once: `name`, or `name@3` in block 3; () when nothing explains the difference.
        before, after: the largest relative error between the sides, and with the faults put in.
        excluded: the faults that were tried and do not explain it.
        undetectable: the faults that could not be excluded at this noise.
        rounds: how many faults were put in at once.
        others: further combinations that give the same, to what could be told.
        side: the side that has the faults, measured against the other one.
        titles: the faults in words.
        reason: a sentence.
        proven: the error falls to what rounding gives; otherwise the size of the error is all that speaks for it.
        watched: it was seen in the side's own run, and not put into the other side.
        runs: runs of the whole reference network; stretches: of parts of it.
        unsound: nothing was searched, for the side that is right could not be rebuilt.
        detail: before and after, forward and backward apart.
    """

    found: tuple[str, ...] = ()
    before: float = 0.0
    after: float = 0.0
    excluded: tuple[str, ...] = ()
    undetectable: tuple[str, ...] = ()
    rounds: int = 0
    others: tuple[tuple[str, ...], ...] = ()
    side: str = ""
    titles: tuple[str, ...] = ()
    reason: str = ""
    proven: bool = True
    watched: bool = False
    runs: int = 0
    stretches: int = 0
    unsound: bool = False
    detail: tuple[Residual, Residual] | None = None

    @property
    def names(self) -> frozenset[frozenset[str]]:
        """Return every combination that explains it, as sets of names of the catalogue without blocks."""
        every = [self.found, *self.others] if self.found else []
        return frozenset(frozenset(n.partition("@")[0] for n in names) for names in every)


def cause_of(search: Search, first: State, found: Sequence[State], block: Callable[[int], str] | None = None) -> Cause:
    """Return what a search came to: `first` without faults, `found` the combinations that fit; `block` names blocks."""
    block = block or (search.config.label if isinstance(search.config, FlatConfig) else str)
    before = max(first.left.forward, first.left.backward)
    known = {"before": before, "runs": search.runs, "stretches": search.stretches}
    if first.passes:
        return Cause(after=before, reason="with side {A}'s facts side {B} computes the same: no fault", **known)  # type: ignore[arg-type]
    if not found:
        locus = first.locus
        at = "" if locus is None else f"; they part {locus.phase} at {locus.tap}"
        reason = f"none of the {len(search.tried)} faults that could show there explains it, nor do pairs of them{at}"
        return Cause(after=before, excluded=tuple(search.tried), reason=reason, **known)  # type: ignore[arg-type]
    best = found[0]
    explained = {p.name for s in found for p in s.found}
    words = " and ".join(p.title(block) for p in best.found)
    return Cause(
        found=_names(best.found, block),
        after=max(best.left.forward, best.left.backward),
        excluded=tuple(name for name in search.tried if name not in explained),
        rounds=len(best.found),
        others=tuple(_names(s.found, block) for s in _distinct(found)),
        titles=tuple(p.title(block) for p in best.found),
        reason=f"side {{B}} is side {{A}} with this: {words}",
        detail=(first.left, best.left),
        **known,  # type: ignore[arg-type]
    )


def _names(found: Combination, block: Callable[[int], str]) -> tuple[str, ...]:
    return tuple(p.told(block) for p in found)


def _distinct(found: Sequence[State]) -> Iterator[State]:
    """Yield what is not the first, nor the same with its blocks spelled out."""
    seen = {frozenset(p.name for p in found[0].found)}
    for state in found[1:]:
        names = frozenset(p.name for p in state.found)
        if names not in seen:
            seen.add(names)
            yield state
