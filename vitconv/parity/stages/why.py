"""Why do the sides part: the search through the fault catalogue, as a stage."""

from __future__ import annotations

from collections.abc import Sequence

from vitconv.parity.capability import finest
from vitconv.parity.explain import Cause, explain
from vitconv.parity.half_only import explain_half, limits_told
from vitconv.parity.observed import by_autocast, observed
from vitconv.parity.pair import GIVEN, PROBE, Pair
from vitconv.parity.probe import RESIZED
from vitconv.parity.stage import Row, Stage, skipped, stage
from vitconv.parity.where import Where

KEY, TITLE = "why", "Why?"


def ask(pair: Pair, where: Sequence[Where], out: list[Cause], judged: Sequence[str], *, compared: bool = True) -> Stage:
    """Search the cause of the difference and add it to `out`; a stage that is skipped when there is none.

    Where the function was not compared in float64 it is asked in any case: what was not seen may be below rounding.

    Args:
        pair: the sides.
        where: where they part, if they do.
        out: gets the cause.
        judged: the precisions that were judged.
        compared: whether the function was compared in float64.
    """
    if where and where[0].inputs == RESIZED:
        # The catalogue's network runs at the native size, where there is nothing to explain.
        how = "at their own size they agree, so compare how the positions are resized"
        return skipped(
            KEY, TITLE, f"{how}: interpolation, antialias, align_corners, offset, and the grid they start from"
        )
    half = not compared and bool(judged) and not finest(pair, pair.a)[1]
    if half:
        cause = explain_half(pair, judged[0], GIVEN if GIVEN in pair.sets else PROBE)
        if where and not cause.found:
            # More rounding error than the baseline has: a loss of precision may have these sizes.
            sized = explain(pair.a, pair.b, where[0], pair=pair)
            cause = sized if sized.found else cause
    elif where:
        own = by_autocast(pair, where[0]) if where[0].precision != "fp64" else None
        cause = own or explain(pair.a, pair.b, where[0], pair=pair)
        cause = cause if cause.found else observed(pair, where[0], cause)
    else:
        return skipped(KEY, TITLE, "there is nothing to explain")
    out.append(cause)
    return told(cause, half=half, parted=bool(where))


def told(cause: Cause, *, half: bool, parted: bool) -> Stage:
    """Return the stage that tells a cause; `half`: found by regression, `parted`: the sides were seen to part."""
    found = tuple(str(name) for name in cause.found)
    said = f"explained by {' and '.join(found)}" if found else "no fault of the catalogue explains it"
    if half and not parted and not found:
        said = "no fault of the catalogue stands out of the noise"
    values = {"found": found, "before": cause.before, "after": cause.after, "excluded": tuple(map(str, cause.excluded))}
    rows = [Row("cause", "info", said, values)]
    if cause.undetectable:
        told = limits_told([str(n) for n in cause.undetectable])
        rows.append(Row("detection limit", "warn", told, {"undetectable": cause.undetectable}))
    return stage(KEY, TITLE, rows)
