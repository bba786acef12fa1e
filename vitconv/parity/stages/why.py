"""Why do the sides part: the search through the fault catalogue, as a stage."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from vitconv.parity.pair import Pair
from vitconv.parity.stage import Row, Stage, skipped, stage
from vitconv.parity.where import Where

KEY, TITLE = "why", "Why?"


def ask(pair: Pair, where: list[Where], out: list[Any]) -> Stage:
    """Search the cause of the difference and add it to `out`; a stage that is skipped when there is none."""
    if not where:
        return skipped(KEY, TITLE, "there is nothing to explain")
    if find_spec("vitconv.parity.explain") is None:
        return skipped(KEY, TITLE, "there is no fault catalogue here")
    from vitconv.parity.explain import explain  # type: ignore[import-not-found, unused-ignore]

    cause = explain(pair.a, pair.b, where[0], pair=pair)
    out.append(cause)
    found = tuple(str(name) for name in cause.found)
    said = f"explained by {' and '.join(found)}" if found else "no fault of the catalogue explains it"
    values = {"found": found, "before": cause.before, "after": cause.after, "excluded": tuple(map(str, cause.excluded))}
    unseen = ", ".join(map(str, cause.undetectable))
    notes = [f"cannot be excluded at this noise: {unseen}"] if unseen else []
    return stage(KEY, TITLE, [Row("cause", "info", said, values)], notes)
