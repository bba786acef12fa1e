"""Same function? Both sides in float64, forward and backward, on probe weights and on those given."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from vitconv.layout.match import collapse
from vitconv.parity.compare import Gap, gaps, missing, pooled, whole
from vitconv.parity.pair import GIVEN, Pair
from vitconv.parity.probe import IMAGES, RESIZED
from vitconv.parity.stage import Row, Stage, short, stage
from vitconv.parity.tolerance import SAME_FUNCTION

KEY, TITLE = "function", "Same function? (float64)"


@dataclass(frozen=True)
class Compared:
    """Float64 gaps: of each set of weights and inputs, {(weights, inputs): gaps}."""

    stage: Stage
    gaps: Mapping[tuple[str, str], tuple[Gap, ...]]

    def worst(self) -> tuple[str, str] | None:
        """Return the weights and inputs of the first run that is off the floor, probe weights first."""
        floor = float(self.stage.data["threshold"])
        bad = [key for key, found in self.gaps.items() if any(not g.rel_rms <= floor for g in found)]
        return bad[0] if bad else None


def same_function(pair: Pair, threshold: float = SAME_FUNCTION) -> Compared:
    """Compare taps, output, gradients of taps and of parameters of both sides in float64."""
    rows: list[Row] = []
    notes: list[str] = []
    every: dict[tuple[str, str], tuple[Gap, ...]] = {}
    for of in pair.sets:
        for inputs in pair.images:
            a = pair.run(pair.a, inputs, "fp64", of)
            b = pair.run(pair.b, inputs, "fp64", of)
            every[of, inputs] = tuple(gaps(a, b))
            name = f"{inputs} to {'x'.join(map(str, pair.images[inputs].shape[2:]))}" if inputs == RESIZED else inputs
            rows.append(row_of(of, name, every[of, inputs], threshold))
            found, said = lost_rows(of, inputs, missing(a, b), set(pair.a.shapes) & set(pair.b.shapes))
            rows += found
            notes += said
            notes += [f"{t.side}: {t.facts[k]}" for t in (a, b) for k in ("lifted", "repeated") if k in t.facts]
    for of in pair.sets:
        for label, gains in pair.gains(of).items():
            names = ", ".join(collapse(gains))
            notes.append(f"{label} has a factor folded in, which is put back to compare {names}")
    if pair.own_size:
        notes.append(f"no image of another size was run: {pair.own_size}")
    left_out = [n for n in IMAGES if n not in pair.images and not (n == RESIZED and pair.own_size)]
    if left_out:
        notes.append(f"not run, since other inputs were asked for: {', '.join(left_out)}")
    if pair.blockwise:
        notes.append("not compared, to bound the memory: the values inside blocks (their parameters are)")
    if GIVEN not in pair.sets:
        notes.append("no weights were given: probe weights only")
    joined = pooled(every.values())
    data = {
        "gaps": joined,
        "threshold": threshold,
        "by_run": {f"{of}/{inputs}": g for (of, inputs), g in every.items()},
    }
    return Compared(stage(KEY, TITLE, rows, notes, data), every)


def lost_rows(
    of: str, inputs: str, lost: Mapping[str, tuple[str, ...]], both: Collection[str]
) -> tuple[list[Row], list[str]]:
    """Return rows and notes on what only one trace has; `both`: the parameters that both sides have."""
    rows: list[Row] = []
    notes = [
        f"not compared, {what}: {', '.join(collapse(n))}" for what, n in lost.items() if not what.startswith("grad ")
    ]
    apart = {n for what, names in lost.items() if what.startswith("grad ") for n in names}
    # One that the other side does not have is another network; one that it has and does not show is unknown.
    for parted, blame in ((apart - {*both}, "differs"), (apart & {*both}, "undecided")):
        if parted:
            said = f"gradients of one side only: {', '.join(collapse(sorted(parted)))}"
            rows.append(Row(f"{of} weights, {inputs}: gradients", "fail", said, blame=blame))  # type: ignore[arg-type]
    return rows, notes


def row_of(of: str, inputs: str, found: tuple[Gap, ...], threshold: float) -> Row:
    """Return the row of one run: its worst values, and the first that is off."""
    taps = [g for g in found if g.kind in ("tap", "output")]
    back = [g for g in found if g.kind in ("tap-grad", "grad")]
    tap, grad = (max(group, key=lambda g: g.rel_rms, default=None) for group in (taps, back))
    output = next(g for g in found if g.kind == "output")
    error, size = whole(found)
    smallest = max(g.rel_rms for g in found)
    values = {
        "output": output.rel_rms,
        "worst_tap": tap.rel_rms if tap else None,
        "worst_tap_name": tap.name if tap else None,
        "gradients": error / size if size else None,
        "worst_gradient": grad.rel_rms if grad else None,
        "worst_gradient_name": grad.name if grad else None,
        "max_abs": output.max_abs,
        "max_rel": output.max_rel,
        "cosine": output.cosine,
        "min_tolerance": max(g.min_tolerance for g in taps),
        "smallest_threshold": smallest,
        "compared": len(found),
    }
    name = f"{of} weights, {inputs}"
    off = [g for g in found if not g.rel_rms <= threshold]
    if not off:
        detail = f"{len(found)} values and gradients agree to {short(smallest)}"
        return Row(name, "ok", detail, values)
    sick = next((g for g in off if not g.finite), None)
    if sick is not None:
        whose = " and ".join(s for s, fine in (("A", sick.finite_a), ("B", sick.finite_b)) if not fine)
        blame = "undecided" if not sick.finite_a else "differs"
        return Row(name, "fail", f"NaN or Inf in {whose}, first at {sick.name}", values, blame)  # type: ignore[arg-type]
    first = off[0]
    how = first.shapes or short(first.rel_rms)
    detail = f"{len(off)} of {len(found)} are off, first {first.kind} {first.name} ({how})"
    if not any(g.kind in ("tap", "output") for g in off):
        detail += "; forward agrees, backward does not"
    return Row(name, "fail", detail, values)
