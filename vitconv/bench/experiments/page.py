"""Write docs/experiments.md from the results: tables and counts are worked out, and so are the figures in the text."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from typing import Any

from vitconv.bench.experiments.__main__ import read
from vitconv.bench.experiments.cell import Cell
from vitconv.bench.experiments.studies import DEPTHS, PLACEMENTS, STUDIES
from vitconv.bench.experiments.words import CAUSE, GATES, HEAD, LIMITS, PLACEMENT, REPORT, SEEN

# A stream this many times its start has grown out of proportion; a loss above this is that of guessing.
BLOWN = 100.0
GUESSING = 0.97 * math.log(10)


@dataclass(frozen=True)
class Result:
    """One experiment that was run: the cell, what the checks said before, how the training went."""

    cell: Cell
    checks: dict[str, Any]
    training: dict[str, Any]

    @property
    def verdict(self) -> str:
        """Return trains, stuck, collapses or diverges."""
        return str(self.training["verdict"])

    @property
    def grew(self) -> bool:
        """Return whether the stream grew out of all proportion, or to no number at all."""
        return not self.training["stream_largest"] <= BLOWN * self.training["stream"][0] or self.verdict == "diverges"

    @property
    def collapsed(self) -> bool:
        """Return whether the stream grew so and the loss is that of guessing, or none."""
        return self.grew and self.guesses

    @property
    def outcome(self) -> str:
        """Return collapsed, grew, stuck or held."""
        return "collapsed" if self.collapsed else "grew" if self.grew else "stuck" if self.guesses else "held"

    @property
    def guesses(self) -> bool:
        """Return whether the loss is that of guessing at the end, or none."""
        last = self.training["last"]
        return last is None or last > GUESSING

    def figure(self, name: str, form: str = ".3g") -> str:
        """Return a figure of a check, or a dash."""
        value = self.checks["figures"].get(name)
        return "-" if value is None else f"{value:{form}}"

    def said(self, level: str) -> list[str]:
        """Return the checks that came to this level."""
        return [name for name, found in self.checks["levels"].items() if found == level]

    @property
    def before(self) -> str:
        """Return the worst level of the checks that concern the network, not the first step's size alone."""
        levels = {found for name, found in self.checks["levels"].items() if name not in IGNORED}
        return "error" if "error" in levels else "warn" if "warn" in levels else "ok"


# The step without warm-up is what the experiment varies; it is told apart in the column of the outcome.
IGNORED = ("first-step",)


def results(folder: Path, study: str) -> list[Result]:
    """Return what was run of a study, in its order."""
    trained, looked = read(folder / f"{study}-trainings.json"), read(folder / f"{study}-checks.json")
    return [Result(c, looked[c.id], trained[c.id]) for c in STUDIES[study]() if c.id in trained and c.id in looked]


def page(folder: Path) -> str:
    """Return the page."""
    placed, report, gates = (results(folder, study) for study in STUDIES)
    outcomes = placement_outcomes(placed)
    parts = [
        HEAD,
        PLACEMENT,
        _placement_table(placed, outcomes),
        "### Before against after",
        confusion(outcomes),
        GATES,
        _gates_table(gates),
        REPORT,
        _report_table(report),
        "How many collapsed, by what was varied:",
        _counts_table(report),
        SEEN,
        _seen_table(report),
        wrapped(CAUSE.format(**_powers(report), **_factors(report))),
        LIMITS,
        _run({"placement": placed, "report": report, "gates": gates}),
    ]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def wrapped(text: str) -> str:
    """Return paragraphs of a text in lines of 118 characters, headings left alone."""
    paragraphs = text.strip().split("\n\n")
    return "\n\n".join(
        p if p.startswith("#") else fill(" ".join(p.split()), 118, break_on_hyphens=False) for p in paragraphs
    )


@dataclass(frozen=True)
class Outcome:
    """One network: what was said before, and how it went with warm-up and without."""

    variant: str
    depth: int
    before: str
    errors: tuple[str, ...]
    warns: tuple[str, ...]
    result: Result
    after: str

    @property
    def told(self) -> str:
        """Return what came after, and how it went with warm-up where only the run without it trained."""
        other = self.after == "trains" and self.result.verdict != "trains"
        return self.after + (f" (with warm-up: {self.result.verdict})" if other else "")


def placement_outcomes(found: Iterable[Result]) -> list[Outcome]:
    """Join the runs of one network with and without warm-up; what lacks one of them is left out."""
    by: dict[tuple[str, int, int], dict[int, Result]] = {}
    for r in found:
        by.setdefault((r.cell.variant, r.cell.depth, r.cell.seed), {})[r.cell.warmup] = r
    rows = []
    for (variant, depth, _), runs in by.items():
        if len(runs) < 2:
            continue
        warm, cold = runs[max(runs)], runs[min(runs)]
        after = warm.verdict
        if warm.verdict == "trains" and cold.verdict != "trains":
            after = "needs warm-up"
        elif warm.verdict != "trains" and cold.verdict == "trains":
            after = "trains"
        errors = tuple(n for n in warm.said("error") if n not in IGNORED)
        warns = tuple(n for n in warm.said("warn") if n not in IGNORED)
        rows.append(Outcome(variant, depth, warm.before, errors, warns, warm, after))
    return rows


def _placement_table(found: list[Result], outcomes: list[Outcome]) -> str:
    cold = {(r.cell.variant, r.cell.depth): r for r in found if r.cell.warmup == 1 and r.cell.seed == 0}
    head = (
        _row("depth", "network", "stream RMS: start, block 1, middle, last", "rho", "token cosine", "max logit",
             "checks before", "loss without / with warm-up", "after"),
        "|---|---|---|---|---|---|---|---|---|",
    )  # fmt: skip
    rows = []
    for depth in DEPTHS:
        for variant in PLACEMENTS:
            for o in outcomes:
                if (o.variant, o.depth) != (variant, depth) or o.result.cell.seed:
                    continue
                r = o.result
                others = [p for p in outcomes if (p.variant, p.depth) == (variant, depth) and p.result.cell.seed]
                after = f"**{o.told}**" + "".join(f"; seed {p.result.cell.seed}: {p.told}" for p in others)
                stream = " ".join(f"{x:.2g}" for x in r.checks["stream"])
                without = _loss(cold[variant, depth].training)
                rows.append(
                    f"| {depth} | {variant} | {stream} | {r.figure('gradient-profile.rho', '.2g')} "
                    f"| {r.figure('gradient-profile.token_cosine', '.3f')} | {r.figure('attention.largest', '.2g')} "
                    f"| {_levels(o)} | {without} / {_loss(r.training)} | {after} |"
                )
    return "\n".join((*head, *rows))


def _gates_table(found: list[Result]) -> str:
    """Return one line per network and plan: losses by depth and seed, and how far a gain could come."""
    groups: dict[tuple[Any, ...], list[Result]] = {}
    for r in found:
        groups.setdefault((r.cell.variant, r.cell.lr, r.cell.steps), []).append(r)
    lines = [
        _row("network", "lr", "steps", "sum of the rates", "`gate-growth` before", "loss: depth 6, seeds 0 and 1; 12"),
        "|---|---|---|---|---|---|",
    ]
    for (variant, lr, steps), runs in sorted(groups.items(), key=lambda item: (item[0][2] * item[0][1], item[0][0])):
        plan = runs[0].cell.plan
        total = sum(plan.lr_at(step) for step in range(steps))
        at = {(r.cell.depth, r.cell.seed): _loss(r.training) for r in runs}
        told = [at.get((6, 0), "-"), *([at[6, 1]] if (6, 1) in at else [])]
        losses = " ".join(told) + (f"; {at[12, 0]}" if (12, 0) in at else "")
        level = runs[0].checks["levels"].get("gate-growth", "-")
        lines.append(_row(variant, f"{lr:g}", str(steps), f"{total:.3f}", level, losses))
    return "\n".join(lines)


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _loss(training: dict[str, Any]) -> str:
    return "not finite" if training["last"] is None else f"{training['last']:.2f}"


def _levels(o: Outcome) -> str:
    parts = [f"error: {', '.join(o.errors)}"] if o.errors else []
    parts += [f"warn: {', '.join(o.warns)}"] if o.warns else []
    return "; ".join(parts) or "ok"


def confusion(outcomes: list[Outcome]) -> str:
    """Return the table of what was said before against what came after."""
    after = ("trains", "needs warm-up", "stuck", "collapses", "diverges")
    lines = [f"| checks before | {' | '.join(after)} |", f"|---|{'---|' * len(after)}"]
    for level in ("ok", "warn", "error"):
        cells = []
        for word in after:
            some = [o for o in outcomes if o.before == level and o.after == word]
            names = ", ".join(_named(o) for o in some if (level, word) not in AGREE)
            cells.append(f"{len(some)}" + (f" ({names})" if names else ""))
        lines.append(f"| {level} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _named(o: Outcome) -> str:
    seed = o.result.cell.seed
    return f"{o.variant} {o.depth}" + (f", seed {seed}" if seed else "")


# What needs no names: the two agree.
AGREE = frozenset(
    {("ok", "trains"), ("warn", "needs warm-up"), ("error", "stuck"), ("error", "collapses"), ("error", "diverges")}
)


def _report_table(found: list[Result]) -> str:
    lines = [
        _row("what is wrong", "depth", "lr", "seed", "precision", "steps", "loss, ln 10 = 2.303", "accuracy",
             "largest logit", "stream RMS at its largest", "outcome"),
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for r in found:
        c, t = r.cell, r.training
        lines.append(
            f"| {c.variant} | {c.depth} | {c.lr:g} | {c.seed} | {c.precision} | {t['steps']} of {c.steps} "
            f"| {_loss(t)} | {t['accuracy']:.3f} | {t['largest_logit']:.3g} | {t['stream_largest']:.3g} "
            f"| {'**collapsed**' if r.collapsed else r.outcome} |"
        )
    return "\n".join(lines)


def _seen_table(found: list[Result]) -> str:
    """Return, by check, how often it spoke ahead of runs that collapsed, of raw ones that did not, of twins."""
    names = sorted({n for r in found for n, level in r.checks["levels"].items() if level in ("warn", "error")})
    groups = {
        "collapsed": [r for r in found if r.collapsed],
        "K and V raw, not collapsed": [r for r in found if raw(r) and not r.collapsed],
        "K and V normalised": [r for r in found if not raw(r)],
    }
    lines = [
        "| check, before training | " + " | ".join(f"{g} ({len(rs)} runs)" for g, rs in groups.items()) + " |",
        "|---|" + "---|" * len(groups),
    ]
    for name in names:
        cells = []
        for rs in groups.values():
            errors, warns = (sum(r.checks["levels"].get(name) == level for r in rs) for level in ("error", "warn"))
            cells.append(f"error {errors}, warn {warns}" if errors or warns else "silent")
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def raw(r: Result) -> bool:
    """Return whether keys and values read the stream itself."""
    return "K and V raw" in r.cell.variant or r.cell.variant.startswith("all")


def _counts_table(found: list[Result]) -> str:
    """Return how many runs of each group collapsed; groups of which nothing was run are left out."""
    only, none = "K and V raw", "nothing"
    groups: dict[tuple[Any, ...], dict[str, list[Result]]] = {}
    for r in found:
        if r.cell.variant in (only, none):
            key = (r.cell.depth, r.cell.lr, r.cell.precision)
            groups.setdefault(key, {}).setdefault(r.cell.variant, []).append(r)
    lines = [
        "| depth | lr | precision | K and V raw: collapsed | K and V normalised: collapsed |",
        "|---|---|---|---|---|",
    ]
    for (depth, lr, precision), by in sorted(groups.items()):
        cells = [f"{sum(r.collapsed for r in rs)} of {len(rs)}" if (rs := by.get(v)) else "-" for v in (only, none)]
        lines.append(_row(str(depth), f"{lr:g}", precision, *cells))
    return "\n".join(lines)


def _powers(found: list[Result]) -> dict[str, str]:
    name = "stream-growth.power_attn"
    values = {kind: [r.checks["figures"][name] for r in found if raw(r) is kind] for kind in (True, False)}
    faults = [r for r in found if raw(r) and r.cell.variant != "K and V raw"]
    return {
        "power_low": f"{min(values[True], default=0):.2f}",
        "power_high": f"{max(values[True], default=0):.2f}",
        "right_low": f"{min(values[False], default=0):.2f}",
        "right_high": f"{max(values[False], default=0):.2f}",
        "right_all": f"{sum(r.collapsed for r in found if not raw(r))} of {sum(not raw(r) for r in found)}",
        "right_stuck": ", ".join(
            f"{r.cell.variant} ({r.cell.depth} blocks, lr {r.cell.lr:g}, seed {r.cell.seed},"
            f" stream at most {r.training['stream_largest']:.2g})"
            for r in found
            if not raw(r) and r.outcome == "stuck"
        )
        or "none",
        "raw_with": f"{sum(r.collapsed for r in faults)} of {len(faults)}",
    }


def _factors(found: list[Result]) -> dict[str, str]:
    def told(name: str) -> str:
        some = [r for r in found if r.cell.variant == name and r.cell.depth == 12 and r.cell.lr == 4e-3]
        runs = [
            f"{r.training['accuracy']:.2f} and {r.training['stream_largest']:.2g}"
            + (f" ({r.cell.precision})" if r.cell.precision != "fp32" else "")
            + (f" ({r.outcome})" if r.outcome != "held" else "")
            for r in some
        ]
        return "; ".join(runs) or "not run"

    return {"eps": told("eps 1e-5"), "init": told("init misses q, k, v"), "fused": told("FusedMLP")}


def _run(all_found: dict[str, list[Result]]) -> str:
    lines = ["## What was run", ""]
    for study, found in all_found.items():
        planned = STUDIES[study]()
        seconds = sum(r.training["seconds"] for r in found)
        lines.append(f"- `{study}`: {len(found)} of {len(planned)} trainings, {seconds / 60:.0f} minutes.")
        left = [c.id.removeprefix(f"{study}, ") for c in planned if c.id not in {r.cell.id for r in found}]
        if left:
            lines.append(f"  Not run, for want of time: {'; '.join(left)}.")
    lines += ["", "`python -m vitconv.bench.experiments run docs/experiments` goes on where it stopped."]
    return "\n".join(lines)
