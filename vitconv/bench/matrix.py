"""The detection matrix as a report: singles, pairs, clean pairs, and what half precision alone can tell."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from vitconv.bench.clean import Clean, library_pairs, timm_pairs
from vitconv.bench.detection import Cell, benches, cell, mutations, pairs, summary
from vitconv.bench.half import HalfBench, forward_only
from vitconv.report import Column, Report, Row, Section

Tell = Callable[[str], None]
# The pieces of the quick subset: one mutation of each site and visibility.
QUICK = (
    "patch kernel transposed", "images in BGR", "grid transposed", "class row not added", "rows kqv",
    "rows read per head", "scale too large by 1 %", "tanh GELU", "tanh GELU in block 2", "eps 1e-5 in blocks",
    "eps 1e-5 at the end", "post-norm", "no LayerScale", "final norm skipped", "weights in fp16", "keys detached",
    "position gradient doubled",
    "derivative of tanh GELU", "dropout after proj", "no key bias",
)  # fmt: skip


@dataclass(frozen=True)
class Matrix:
    """Everything that was planted and run."""

    singles: tuple[Cell, ...]
    doubles: tuple[Cell, ...]
    half: tuple[Cell, ...]
    clean: tuple[Clean, ...]

    @property
    def good(self) -> bool:
        """Return whether the targets are met: all seen, 95 % named, 90 % of pairs, nobody accused wrongly."""
        one, two = summary(self.singles), summary(self.doubles)
        accused = one["accused"] + two["accused"] + summary(self.half)["accused"]
        return (
            one["missed"] == two["missed"] == accused == 0
            and one["named"] >= 0.95 * one["real"]
            and two["named"] >= 0.90 * two["real"]
            and not any(c.alarm or c.accused for c in self.clean)
        )


def measure(
    *,
    quick: bool = False,
    digits: Path | None = None,
    precisions: Sequence[str] = ("fp64", "fp32"),
    half: Sequence[str] = ("amp-bf16",),
    pair_count: int = 24,
    seeds: int = 4,
    tell: Tell = lambda text: None,
) -> Matrix:
    """Plant everything everywhere.

    Args:
        quick: a subset for continuous integration: one network, 20 faults, float64.
        digits: folder of the trained network, or None.
        precisions: those in which faults are searched exactly.
        half: those in which only the regression is left.
        pair_count: crossed pairs per network in float64; half as many more of one place.
        seeds: how many weights the libraries are compared with.
        tell: told what is done.
    """
    singles: list[Cell] = []
    doubles: list[Cell] = []
    halves: list[Cell] = []
    clean: list[Clean] = []
    for bench in benches(quick=quick, digits=None if quick else digits):
        if quick and bench.name != "token":
            continue
        chosen = [m for m in mutations() if m.fits(bench.net) and (not quick or m.name in QUICK)]
        for precision in ("fp64",) if quick else precisions:
            tell(f"{bench.name}, {bench.weights_name}, {precision}: {len(chosen)} faults")
            singles += [cell(bench, [m], precision) for m in chosen]
            clean += timm_pairs(bench, precision)
        if bench.weights_name != "init":
            chosen_pairs = pairs(bench, 2 if quick else pair_count)
            tell(f"{bench.name}, {bench.weights_name}, fp64: {len(chosen_pairs)} pairs of faults")
            doubles += [cell(bench, pair, "fp64") for pair in chosen_pairs]
            for precision in () if quick else half:
                tell(f"{bench.name}, {bench.weights_name}, {precision}: regression")
                alone = HalfBench(bench, precision)
                halves += [alone.cell([m]) for m in forward_only(chosen, bench.net)]
    for precision in ("fp64",) if quick else precisions:
        for seed in range(1 if quick else seeds):
            tell(f"libraries, seed {seed}, {precision}")
            clean += library_pairs(seed, precision)
    return Matrix(tuple(singles), tuple(doubles), tuple(halves), tuple(clean))


def report(matrix: Matrix) -> Report:
    """Return the matrix as a document."""
    columns = (
        Column("network", "network"),
        Column("weights", "weights"),
        Column("precision", "precision"),
        Column("planted", "planted", "number"),
        Column("none", "no effect at these weights", "number"),
        Column("hidden", "below rounding", "number"),
        Column("missed", "missed", "number"),
        Column("named", "named right", "number"),
        Column("accused", "accused wrongly", "number"),
    )
    alarms = [c for c in matrix.clean if c.alarm or c.accused]
    sections = [
        Section("singles", "single faults", columns, tuple(_rows(matrix.singles))),
        Section("pairs", "two faults at once", columns, tuple(_rows(matrix.doubles))),
        Section(
            "half",
            "a side that exists in half precision only: regression over inputs",
            columns,
            tuple(_rows(matrix.half)),
            notes=("missed: could be excluded neither; the explainer says so (its detection limit)",),
        ),
        Section(
            "clean",
            "pairs that compute the same",
            (Column("pairs", "pairs", "number"), Column("alarms", "false alarms", "number")),
            (Row((len(matrix.clean), len(alarms))),),
            notes=tuple(f"{c.pair}, {c.precision}: {'+'.join(c.accused) or 'differs'}" for c in alarms),
        ),
        Section(
            "open",
            "not named right",
            (
                Column("where", "where"),
                Column("fault", "planted"),
                Column("answer", "answer"),
                Column("before", "error before", "number"),
                Column("after", "error after", "number"),
            ),
            tuple(
                Row(
                    (
                        f"{c.network}, {c.weights}, {c.precision}",
                        c.mutation,
                        " or ".join("+".join(a) for a in c.answer) or ("-" if c.seen else "not seen"),
                        c.before,
                        c.after,
                    )
                )
                for c in (*matrix.singles, *matrix.doubles, *matrix.half)
                if c.effect and not c.named
            ),
        ),
    ]
    return Report(
        "vitconv.bench.detection", "Planted faults: seen, named, and nobody accused", sections=tuple(sections)
    )


def _rows(cells: Sequence[Cell]) -> Iterable[Row]:
    for key in dict.fromkeys((c.network, c.weights, c.precision) for c in cells):
        n = summary([c for c in cells if (c.network, c.weights, c.precision) == key])
        yield Row(
            (*key, n["planted"], n["no effect"], n["hidden"], n["missed"], f"{n['named']} of {n['real']}", n["accused"])
        )
