"""The kernels' benchmark as a report: correctness first, then every time beside the peers', as a share of ceilings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vitconv.report import Column, Fact, Report, Row, Section

_CASE = (Column("kernel", "kernel"), Column("case", "case"))
_CHECKS = (*_CASE, Column("error", "largest error"))
_TARGETS = (*_CASE, *(Column(name, name) for name in ("pass", "what", "wanted", "found")))
_TIMES = (
    *_CASE,
    Column("pass", "pass"),
    Column("provider", "provider", "code"),
    Column("median", "median", "seconds"),
    Column("p10", "p10", "seconds"),
    Column("p90", "p90", "seconds"),
    Column("host", "host's part", "seconds"),
    Column("ratio", "times as fast as eager", "ratio"),
    Column("rate", "GB/s"),
    Column("share", "share of copy", "ratio"),
    Column("plan", "times its planned bytes", "ratio"),
    Column("flops", "TFLOP/s"),
)


def report(found: dict[str, Any]) -> Report:
    """Return the result of `vitconv.kernels.bench.run` as a report; without a card its times are marked as no claim."""
    ceilings = found["ceilings"]
    facts = [
        Fact("device", (found["device"],)),
        Fact("versions", (", ".join(f"{name} {version}" for name, version in found["versions"].items()),)),
        Fact("measured copy", (f"{ceilings['copy_gb_s']:.4g} GB/s",)),
        Fact("measured matmul", (f"{ceilings['matmul_tflop_s']:.4g} TFLOP/s",)),
        Fact("correct", ("yes" if found["correct"] else "no: no speed is claimed",)),
    ]
    if found["claim"]:
        facts.append(Fact("claim", (found["claim"],)))
    checks = tuple(_check(c) for c in found["checks"])
    times = tuple(_row(r) for r in found["rows"])
    sections = [
        Section("checks", "Correct? Against float64, bit for bit twice, fresh memory poisoned", _CHECKS, checks),
        Section("times", "Time, beside the peers", _TIMES, times),
    ]
    if found["targets"]:
        met = tuple(_target(t) for t in found["targets"])
        sections.append(Section("targets", "Held against what is wanted on an H200", _TARGETS, met))
    if found["left_out"]:
        left = tuple(Row((text,), "warn") for text in found["left_out"])
        sections.append(Section("left", "Left out", (Column("what", "what"),), left))
    return Report("vitconv.bench.kernels", "Kernels on a GPU", facts=tuple(facts), sections=tuple(sections))


def _check(c: dict[str, Any]) -> Row:
    errors = c["errors"]
    error = "none" if not errors else "not finite" if None in errors else f"{max(errors):.2g}"
    return Row((c["kernel"], c["case"], error), "ok" if c["passed"] else "fail", c["said"])


def _target(t: dict[str, Any]) -> Row:
    cells = (t["kernel"], t["case"], t["pass"], t["what"], f"{t['wanted']:.3g}", f"{t['found']:.3g}")
    return Row(cells, "ok" if t["met"] else "warn")


def _row(r: dict[str, Any]) -> Row:
    seconds = [r[name] * 1e-6 for name in ("median_us", "p10_us", "p90_us", "host_us")]
    return Row(
        (
            r["kernel"], r["case"], r["pass"], r["provider"], *seconds, r["ratio_to_eager"],
            f"{r['gb_s']:.4g}", r["share_of_copy"], r["times_plan"], f"{r['tflop_s']:.4g}",
        )
    )  # fmt: skip


def write(found: dict[str, Any], path: Path) -> None:
    """Write the plain figures as JSON, for the page and for whoever compares two cards."""
    import json

    path.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")
