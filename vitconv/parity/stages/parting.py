"""Where do the sides part: in float64 if they differ there, else at the first precision that is off."""

from __future__ import annotations

from collections.abc import Sequence

from vitconv.parity.pair import Pair
from vitconv.parity.stage import Row, Stage, skipped, stage
from vitconv.parity.stages.function import Compared
from vitconv.parity.stages.numerics import Judged
from vitconv.parity.where import Where, gaps_as_map, locate

KEY, TITLE = "where", "Where do they part?"


def look(pair: Pair, compared: Sequence[Compared], judged: Sequence[Judged], out: list[Where]) -> Stage:
    """Locate the first difference that was found and add it to `out`; a stage that is skipped when there is none."""
    worst = compared[0].worst() if compared else None
    bad = next((j for j in judged if j.stage.differences), None)
    if worst is not None:
        off, threshold = gaps_as_map(compared[0].gaps[worst]), float(compared[0].stage.data["threshold"])
        limits = dict.fromkeys(("tap", "tap-grad", "grad"), threshold)
        found = locate(pair, off, limits, precision="fp64", weights=worst[0], inputs=worst[1])
    elif bad is not None:
        inputs = next(iter(pair.images))
        found = locate(
            pair,
            bad.ratios,
            bad.limits,
            precision=bad.precision,
            weights=bad.weights,
            inputs=inputs,
            loss_scale=bad.loss_scale[inputs],
        )
    else:
        return skipped(KEY, TITLE, "nothing was found to part them" if compared or judged else "nothing was compared")
    out.append(found)
    rows = [Row("first", "info", found.sentence, {"forward": found.forward, "backward": found.backward})]
    rows += [
        Row(
            b.name,
            "warn" if b.off or b.off_backward else "ok",
            "alone on the baseline's input" + (f": {b.part} is off" if b.part else ""),
            {"update": b.update, "backward": b.backward, "part": b.part},
        )
        for b in found.blocks
    ]
    return stage(KEY, TITLE, rows)
