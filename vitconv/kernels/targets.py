"""What the kernels are meant to reach on an H200, held against measured rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

# Bandwidth of LayerNorm as a share of the measured copy; speed over eager and time over that of the planned bytes.
SHARE, OVER_EAGER, OVER_PLAN = 0.85, 8.0, 2.0
WIDTHS = range(768, 4097)


def targets(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return for every target of every row of ours: kernel, case, pass, what, wanted, found, met."""
    compiled = {(r["case"], r["pass"]): r["median_us"] for r in rows if r["provider"] == "compile"}
    found = []
    for row in rows:
        if row["provider"] != "own":
            continue
        for what, wanted, value, met in _of(row, compiled.get((row["case"], row["pass"]))):
            where = {name: row[name] for name in ("kernel", "case", "pass")}
            found.append({**where, "what": what, "wanted": wanted, "found": value, "met": met})
    return found


def _of(row: Mapping[str, Any], compiled: float | None) -> Iterator[tuple[str, float, float, bool]]:
    """Yield what is asked of a row; with torch.compile only where that was measured."""
    kernel, passed = row["kernel"], row["pass"]
    if kernel == "layer norm" and row["width"] in WIDTHS and passed in ("forward", "backward"):
        share = row["share_of_copy"]
        yield "share of copy, at least", SHARE, share, share >= SHARE
    if kernel == "focused attention" and passed in ("forward", "both"):
        ratio, plan = row["ratio_to_eager"], row["times_plan"]
        if ratio is not None:
            yield "times as fast as eager, at least", OVER_EAGER, ratio, ratio >= OVER_EAGER
        if compiled is not None:
            ahead = compiled / row["median_us"]
            yield "times as fast as torch.compile, more than", 1.0, ahead, ahead > 1
        yield "times its planned bytes, at most", OVER_PLAN, plan, plan <= OVER_PLAN
