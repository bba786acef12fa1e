"""The detection matrix as a report: singles, pairs, clean pairs, and what half precision alone can tell."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from vitconv.bench.clean import Clean, can_compile, compiled_pair, library_pairs, stage_library_pairs, timm_pairs
from vitconv.bench.detection import Cell, bench_of, cell, mutations, pairs, summary, weights_of
from vitconv.bench.half import HalfBench, forward_only
from vitconv.bench.stage_networks import stage_networks
from vitconv.report import Column, Report, Row, Section

Tell = Callable[[str], None]
# Networks of timm's plain ViT: their parts can be written in other ways, and planted two at a time.
PLAIN = ("digits", "token", "average", "gated")
STAGES = tuple(stage_networks())
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
        one, two, half = summary(self.singles), summary(self.doubles), summary(self.half)
        accused = one["accused"] + two["accused"] + half["accused"]
        return (
            # In half precision what is not named must be said to be open.
            half["missed"] == 0
            and one["missed"] == two["missed"] == accused == 0
            and one["named"] >= 0.95 * one["real"]
            and two["named"] >= 0.90 * two["real"]
            and not any(c.alarm or c.accused for c in self.clean)
        )


@dataclass(frozen=True)
class Piece:
    """A part of the matrix that one process works on: singles, pairs, half, clean, compiled, or libraries."""

    what: str
    network: str
    weights: str
    precision: str
    digits: Path | None = None
    quick: bool = False
    pair_count: int = 0
    seed: int = 0
    faults: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.network}, {self.weights}, {self.precision}: {self.what}"

    def run(self) -> list[Cell | Clean]:
        """Plant, ask, and return what came of it."""
        if self.what == "libraries":
            return [*library_pairs(self.seed, self.precision)]
        if self.what == "libraries' stages":
            return [*stage_library_pairs(self.seed)]
        bench = bench_of(self.network, self.weights, self.digits)
        chosen = [m for m in mutations() if m.fits(bench.net) and (not self.quick or m.name in QUICK)]
        chosen = [m for m in chosen if not self.faults or any(fnmatch(t, f) for t in m.truth for f in self.faults)]
        if self.what == "singles":
            return [cell(bench, [m], self.precision) for m in chosen if self.precision == "fp64" or not m.exact]
        if self.what == "pairs":
            return [cell(bench, pair, self.precision) for pair in pairs(bench, self.pair_count)]
        if self.what == "half":
            alone = HalfBench(bench, self.precision)
            return [*(alone.cell([m]) for m in forward_only(chosen, bench.net)), *alone.clean()]
        if self.what == "compiled":
            return [compiled_pair(bench, self.precision)]
        return [*timm_pairs(bench, self.precision)]


def plan(
    *,
    quick: bool = False,
    digits: Path | None = None,
    only: Sequence[str] = (),
    precisions: Sequence[str] = ("fp64", "fp32"),
    half: Sequence[str] = ("amp-bf16",),
    pair_count: int = 24,
    seeds: int = 4,
    faults: Sequence[str] = (),
) -> list[Piece]:
    """Return the pieces of the matrix; see `measure`."""
    found: list[Piece] = []
    benches = [("token", "like")] if quick else weights_of(digits)
    for name, weights in benches:
        if only and name not in only:
            continue
        own = {"network": name, "weights": weights, "digits": digits, "quick": quick, "faults": tuple(faults)}
        plain = name in PLAIN
        # Faults of networks of stages are searched in float64.
        for precision in ("fp64",) if quick or name in STAGES else precisions:
            found.append(Piece("singles", precision=precision, **own))  # type: ignore[arg-type]
            if plain:
                found.append(Piece("clean", precision=precision, **own))  # type: ignore[arg-type]
            if (name, weights) == ("token", "like") and not quick and can_compile():
                found.append(Piece("compiled", precision=precision, **own))  # type: ignore[arg-type]
        if weights != "init" and plain:
            count = 2 if quick else pair_count
            if not faults:
                found.append(Piece("pairs", precision="fp64", pair_count=count, **own))  # type: ignore[arg-type]
            found += [Piece("half", precision=p, **own) for p in (() if quick else half)]  # type: ignore[arg-type]
    if not only and not faults:
        for precision in ("fp64",) if quick else precisions:
            found += [Piece("libraries", "all", f"seed {s}", precision, seed=s) for s in range(1 if quick else seeds)]
        if not quick and "fp64" in precisions:
            found += [Piece("libraries' stages", "all", f"seed {s}", "fp64", seed=s) for s in range(seeds)]
    return found


def measure(pieces: Sequence[Piece], *, jobs: int = 1, tell: Tell = lambda text: None) -> Matrix:
    """Plant everything everywhere.

    Args:
        pieces: of `plan`, whose options are: quick, a subset for continuous integration (one network, 20 faults,
            float64); digits, folder of the trained network; only, names of networks; precisions, those in which faults
            are searched exactly; half, those in which only the regression is left; pair_count, crossed pairs per
            network in float64 (half as many more of one place); seeds, how many weights libraries are compared with;
            faults, patterns of names of the catalogue: those alone are planted, one at a time.
        jobs: how many processes.
        tell: told what is done.
    """
    done: list[list[Cell | Clean]] = []
    if jobs == 1:
        for piece in pieces:
            done.append(piece.run())
            tell(f"{len(done)}/{len(pieces)} {piece}")
    else:
        from concurrent.futures import ProcessPoolExecutor, as_completed
        from multiprocessing import get_context

        # The costly ones first, so that none is left running alone at the end.
        order = sorted(range(len(pieces)), key=lambda i: _COST.index(pieces[i].what))
        with ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=_one_thread) as pool:
            futures = {pool.submit(pieces[i].run): i for i in order}
            results: dict[int, list[Cell | Clean]] = {}
            try:
                for future in as_completed(futures):
                    results[futures[future]] = future.result()
                    tell(f"{len(results)}/{len(pieces)} {pieces[futures[future]]}")
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
            done = [results[i] for i in range(len(pieces))]
    by: dict[str, list[Cell]] = {"singles": [], "pairs": [], "half": []}
    clean: list[Clean] = []
    for piece, found in zip(pieces, done, strict=True):
        clean += [c for c in found if isinstance(c, Clean)]
        if piece.what in by:
            by[piece.what] += [c for c in found if isinstance(c, Cell)]
    return Matrix(tuple(by["singles"]), tuple(by["pairs"]), tuple(by["half"]), tuple(clean))


_COST = ("half", "singles", "compiled", "pairs", "libraries", "libraries' stages", "clean")


def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)


def report(matrix: Matrix) -> Report:
    """Return the matrix as a document."""
    columns = (
        Column("network", "network"),
        Column("weights", "weights"),
        Column("precision", "precision"),
        Column("planted", "planted", "count"),
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
            notes=("below rounding: could not be excluded, and the explainer says so (its detection limit)",),
        ),
        Section(
            "clean",
            "pairs that compute the same",
            (
                Column("precision", "precision"),
                Column("pairs", "pairs", "count"),
                Column("alarms", "false alarms", "count"),
            ),
            tuple(_clean_rows(matrix.clean)),
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


def _clean_rows(clean: Sequence[Clean]) -> Iterable[Row]:
    for precision in dict.fromkeys(c.precision for c in clean):
        mine = [c for c in clean if c.precision == precision]
        yield Row((precision, len(mine), sum(c.alarm or bool(c.accused) for c in mine)))
    yield Row(("all", len(clean), sum(c.alarm or bool(c.accused) for c in clean)))


def _rows(cells: Sequence[Cell]) -> Iterable[Row]:
    for key in dict.fromkeys((c.network, c.weights, c.precision) for c in cells):
        n = summary([c for c in cells if (c.network, c.weights, c.precision) == key])
        yield Row(
            (*key, n["planted"], n["no effect"], n["hidden"], n["missed"], f"{n['named']} of {n['real']}", n["accused"])
        )
