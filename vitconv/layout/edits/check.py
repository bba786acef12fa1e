"""What rounding does to computed tensors, counted in a pass over the data before the first byte is written."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass

from vitconv.errors import Refused
from vitconv.layout.arith import LARGEST, CastReport, cast_report
from vitconv.layout.edits.compute import Read, is_rounded, name_of, reachable, unrounded
from vitconv.layout.match import collapse
from vitconv.layout.network import Network


@dataclass(frozen=True)
class Finding:
    """What rounding does to one computed tensor: its canonical name, the edit's label, and the counts."""

    name: str
    label: str
    report: CastReport
    refuses: bool


def findings(
    network: Network, read: Read, *, progress: Callable[[int, int], None] | None = None
) -> tuple[Finding, ...]:
    """Compute every tensor that is rounded, one at a time, and count what is lost; nothing is kept or written.

    Args:
        network: the edited network.
        read: gives the elements of a stored cell.
        progress: told (elements done, elements in all).
    """
    tags = [t for t in reachable(network) if is_rounded(network.made[t])]
    total = sum(_numel(network, t) for t in tags)
    # A tensor that overflows is reported for itself; it must not stop the pass when another is computed from it.
    lenient = dataclasses.replace(
        network, made={t: dataclasses.replace(m, overflow="inf") for t, m in network.made.items()}
    )
    out, done = [], 0
    for tag in tags:
        made = network.made[tag]
        source = next((c.dtype for c in made.inputs), "F32")
        report = cast_report(unrounded(lenient, tag, read), source, made.dtype)
        out.append(Finding(name_of(tag), made.label, report, made.overflow == "refuse"))
        done += _numel(network, tag)
        if progress is not None:
            progress(done, total)
    return tuple(out)


def check_before_writing(
    network: Network, read: Read, *, progress: Callable[[int, int], None] | None = None
) -> tuple[Finding, ...]:
    """Return the findings, once it is sure that nothing overflows that was not allowed to.

    Raises:
        Refused: naming every tensor that overflows, and the options that settle it.
    """
    found = findings(network, read, progress=progress)
    bad = [f for f in found if f.refuses and f.report.overflow]
    if bad:
        dtype = bad[0].report.target
        count, numel = sum(f.report.overflow for f in bad), sum(f.report.numel for f in bad)
        raise Refused(
            f"{count} of {numel} elements are past {dtype}'s largest value, {LARGEST[dtype]:.6g}, in"
            f" {', '.join(collapse(f.name for f in bad))} ({bad[0].label}); {_wider(dtype)}, or say"
            f" --edit cast:dtype={dtype},overflow=inf or overflow=clamp"
        )
    return found


def _wider(dtype: str) -> str:
    return "BF16 and F32 reach 3.4e38" if dtype == "F16" else "F64 reaches 1.8e308"


def summary(found: tuple[Finding, ...]) -> list[str]:
    """Return one line per kind of rounding, with the tensors in which elements are lost."""
    kinds = dict.fromkeys((f.label, f.report.target) for f in found)
    lines = []
    for label, target in kinds:
        same = [f for f in found if (f.label, f.report.target) == (label, target)]
        total = same[0].report
        for f in same[1:]:
            total = total + f.report
        hurt = [f.name for f in same if f.report.overflow or f.report.underflow]
        where = f"; in {', '.join(collapse(hurt))}" if hurt else ""
        lines.append(f"{label}: {total}{where}")
    return lines


def _numel(network: Network, tag: str) -> int:
    return math.prod(network.made[tag].shape)
