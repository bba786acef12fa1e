"""Do two sides compute the same function, with the same numerics? Where and why do they part?"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from vitconv.errors import UsageError
from vitconv.parity.capability import finest, rounds_inside
from vitconv.parity.environment import environment
from vitconv.parity.observed import off_on_cpu
from vitconv.parity.pair import CannotRun, Pair, Progress, pair_of
from vitconv.parity.plan import Plan, passes, plan_of
from vitconv.parity.precision import PRECISIONS, precision_of
from vitconv.parity.resolve import Sets, Target, asked, resolve
from vitconv.parity.run import Recorder
from vitconv.parity.stage import AS_ON_CUDA, Row, Stage, more_rows, skipped, stage
from vitconv.parity.stages import accounting, function, numerics, parting, sanity, why
from vitconv.parity.stages.function import Compared
from vitconv.parity.stages.numerics import Judged
from vitconv.parity.tolerance import PROFILES, Profile
from vitconv.parity.verdict import Result, judge
from vitconv.parity.where import Where

DEFAULT_PRECISIONS = ("fp32", "tf32", "amp-fp16", "amp-bf16")
STAGES = ("accounting", "sanity", "function", "numerics", "where", "why")


def verify(
    a: Target,
    b: Target,
    *,
    weights: str | Path | None = None,
    precisions: Sequence[str] = DEFAULT_PRECISIONS,
    skip: Iterable[str] = (),
    set_a: Sets = (),
    set_b: Sets = (),
    dialect_a: str | None = None,
    dialect_b: str | None = None,
    branch_a: str | None = None,
    branch_b: str | None = None,
    edits_a: Sequence[str] = (),
    edits_b: Sequence[str] = (),
    inputs: Sequence[str] = (),
    profile: str = "default",
    device: str = "cpu",
    seed: int = 0,
    blockwise: bool = False,
    save: str | Path | None = None,
    progress: Progress | None = None,
    announce: Callable[[Plan], None] | None = None,
    command: str = "",
) -> Result:
    """Verify side B against the baseline, side A.

    Args:
        a: CHECKPOINT, host:model, host:model@CHECKPOINT, python:module:factory, or a live network.
        b: the other side, likewise.
        weights: one checkpoint for both sides.
        precisions: those of the stage of numerics, of `PRECISIONS`; fp64 always runs.
        skip: stages not to run, of `STAGES`, or one precision as numerics-fp32.
        set_a: facts and host options of A, as NAME=VALUE or a mapping.
        set_b: the same of B.
        dialect_a: the dialect of A's tensors.
        dialect_b: the same of B.
        branch_a: which set of weights of A's checkpoint.
        branch_b: the same of B.
        edits_a: edits of B's weights on their way to A.
        edits_b: edits of A's weights on their way to B; gradients are pulled back through them.
        inputs: which probe images, all unless given.
        profile: the rules, of `PROFILES`.
        device: cpu or cuda.
        seed: of probe weights, probe images and cotangent.
        blockwise: bound the memory: keep what passes between blocks, compute each again in the backward pass.
        save: folder for the traces, to compare or judge later without networks.
        announce: told the plan, passes and memory, before anything of it runs.
        progress: told runs done, runs in all (as planned), and what runs.
        command: what the user typed, for the report.

    Raises:
        UsageError: something asked for does not exist, or the sides do not take the same images.
        Refused: a side is undecided or cannot be built; the message names what completes it.
    """
    rules, left_out = _checked(precisions, skip, profile)
    first = asked(set_a, dialect_a, branch_a, edits_a)
    second = asked(set_b, dialect_b, branch_b, edits_b)
    side_a, side_b = resolve(a, b, weights=weights, ask_a=first, ask_b=second, seed=seed)
    pair = pair_of(side_a, side_b, inputs=tuple(inputs), seed=seed, device=device)
    pair = dataclasses.replace(pair, blockwise=blockwise, progress=progress)
    recorder = None if save is None else Recorder(Path(save), pair)
    pair.sink = recorder
    plan = _planned(pair, precisions, left_out, announce)
    pair.planned = plan.passes
    result = run_stages(pair, precisions, left_out, rules)
    known = {**environment(device, seed), "planned passes": plan.passes, "planned memory, bytes": plan.nbytes}
    result = dataclasses.replace(result, environment=known, command=command, profile=profile)
    if recorder is not None:
        recorder.finish(result)
    return result


def _checked(precisions: Sequence[str], skip: Iterable[str], profile: str) -> tuple[Profile, frozenset[str]]:
    for name in precisions:
        precision_of(name)
    known = (*STAGES, *(f"numerics-{p}" for p in PRECISIONS))
    unknown = [s for s in skip if s not in known]
    if unknown:
        raise UsageError(f"--skip {unknown[0]}: expected one of {', '.join(known)}")
    if profile not in PROFILES:
        raise UsageError(f"profile {profile!r}: expected one of {', '.join(PROFILES)}")
    return PROFILES[profile], frozenset(skip)


def _planned(
    pair: Pair, precisions: Sequence[str], skip: frozenset[str], announce: Callable[[Plan], None] | None
) -> Plan:
    try:
        plan = plan_of(pair, precisions, skip)
    except Exception:
        # A network that does not run is the finding of a later stage; there is nothing to measure.
        plan = Plan(passes(pair, precisions, skip), {})
    if announce is not None:
        announce(plan)
    return plan


def _in_float64(pair: Pair) -> Stage | None:
    """Return the stage as skipped when a side does not run in float64."""
    for side in (pair.a, pair.b):
        _, error = finest(pair, side)
        if error:
            return skipped(function.KEY, function.TITLE, f"{side.label} does not run in float64: {error}")
    return None


def _rounding(pair: Pair, done: Compared) -> Stage | None:
    """Return the stage as skipped when what parts the sides may be that one of them computes in float32 alone."""
    worst = done.worst()
    if worst is None:
        return None
    of, inputs = worst
    for side in (pair.a, pair.b):
        if said := rounds_inside(pair, side, inputs, of):
            pair.finest[side.label] = ("fp32", said)
            return skipped(function.KEY, function.TITLE, f"{side.label} does not run in float64: {said}")
    return None


def _unseen(pair: Pair) -> list[Row]:
    """Return a row for each side that would run in half precision on CUDA, and does not here."""
    said = {side.label: off_on_cpu(pair, side) for side in (pair.a, pair.b)}
    return [Row(f"{label}: {AS_ON_CUDA}", "fail", what, blame="undecided") for label, what in said.items() if what]


def _judged(pair: Pair, precision: str, rules: Profile, judged: list[Judged], same: bool | None) -> Stage:
    """Judge a precision and add it to `judged`; a side that does not run in it is said, and nothing is judged."""
    key, title = f"{numerics.KEY}-{precision}", f"Same numerics? ({precision_of(precision).title})"
    if finest(pair, pair.a)[1]:
        return skipped(key, title, "the baseline does not run in float64, so its error is not known: make it B")
    try:
        done = numerics.same_numerics(pair, precision, rules, same=same)
        if precision_of(precision).autocast is None and (unseen := _unseen(pair)):
            done = dataclasses.replace(done, stage=more_rows(done.stage, unseen))
        judged.append(done)
    except CannotRun as e:
        if finest(pair, pair.side(e.label))[1]:
            return skipped(key, title, f"{e.label} does not run so: {e.said}")
        # A side that runs in float64, and not in what was asked for, is left open.
        return stage(key, title, [Row(f"{e.label}: runs", "fail", str(e), blame="undecided")])
    return judged[-1].stage


def run_stages(pair: Pair, precisions: Sequence[str], skip: frozenset[str], rules: Profile) -> Result:
    """Run the stages on a pair that is on the bench, and judge."""
    stages: list[Stage] = []

    def timed(key: str, title: str, work: Callable[[], Stage]) -> None:
        if key in skip or key.partition("-")[0] in skip:
            stages.append(skipped(key, title, "asked to"))
            return
        started, runs = time.perf_counter(), pair.runs
        done = work()
        seconds = time.perf_counter() - started
        stages.append(dataclasses.replace(done, seconds=seconds, runs=pair.runs - runs))

    compared: list[Compared] = []
    judged: list[Judged] = []

    def compare() -> Stage:
        done = function.same_function(pair, rules.function)
        if (said := _rounding(pair, done)) is not None:
            return said
        compared.append(done)
        return done.stage

    def judge_at(precision: str) -> Stage:
        same = compared[-1].worst() is None if compared else None
        return _judged(pair, precision, rules, judged, same)

    timed(accounting.KEY, accounting.TITLE, lambda: accounting.account(pair))
    shapes_fit = not any(r.name == "shapes" for r in stages[-1].rows)
    if not shapes_fit:
        stages += [skipped(k, k, "the tensors have other shapes") for k in STAGES[1:]]
        word, reason = judge(stages)
        return Result(word, reason, pair.a.spec, pair.b.spec, pair.a.facts, pair.b.facts, tuple(stages))
    timed(sanity.KEY, sanity.TITLE, lambda: sanity.sound(pair))
    timed(function.KEY, function.TITLE, lambda: _in_float64(pair) or compare())
    for name in (p for p in precisions if p != "fp64"):
        title = f"Same numerics? ({precision_of(name).title})"
        timed(f"numerics-{name}", title, lambda name=name: judge_at(name))  # type: ignore[misc]
    where: list[Where] = []
    cause: list[Any] = []
    timed(parting.KEY, parting.TITLE, lambda: parting.look(pair, compared, judged, where))
    ran = [j.precision for j in judged]
    timed(why.KEY, why.TITLE, lambda: why.ask(pair, where, cause, ran, compared=bool(compared)))
    word, reason = judge(stages)
    return Result(
        word,
        reason,
        pair.a.spec,
        pair.b.spec,
        pair.a.facts,
        pair.b.facts,
        tuple(stages),
        where[0] if where else None,
        cause[0] if cause else None,
    )
