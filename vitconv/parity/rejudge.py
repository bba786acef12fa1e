"""Saved runs judged without their networks: the sides of one, or one side of two, as the live run would judge them.

What needs networks is taken over from the run's own report: accounting, sanity, and why a stage did not run.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from vitconv.errors import Refused, UsageError, VitconvError
from vitconv.layout.match import collapse
from vitconv.parity.compare import Gap, gaps, gaps_each, missing, pooled
from vitconv.parity.environment import environment
from vitconv.parity.explain import Cause
from vitconv.parity.half_only import POOLED
from vitconv.parity.precision import PRECISIONS, precision_of
from vitconv.parity.regress_run import regress_runs
from vitconv.parity.run import Run, load_run
from vitconv.parity.stage import AS_ON_CUDA, Row, Stage, skipped, stage
from vitconv.parity.stages import function, numerics, parting, why
from vitconv.parity.stages.numerics import judge_rows, limits_of, ratios_of
from vitconv.parity.tolerance import PROFILES, Profile
from vitconv.parity.verdict import Result, judge
from vitconv.parity.where import Where, gaps_as_map, profile_of

# One side of a run, by its label there.
Kept = tuple[Run, str]
Key = tuple[str, str, str]


def judge_run(path: str | Path, profile: str = "default") -> Result:
    """Judge the two sides of a run again, by other rules and without networks.

    Raises:
        Refused: it has traces of one side only.
    """
    run = load_run(path)
    sides = {side for side, *_ in run.listed()}
    if sides != {"A", "B"}:
        raise Refused(f"{path} holds traces of {', '.join(sorted(sides)) or 'nothing'}; two sides are needed")
    return _judged((run, "A"), (run, "B"), profile)


def compare_runs(a: str | Path, b: str | Path, profile: str = "default", side: str = "A") -> Result:
    """Compare one side of two runs, such as of the same network on two machines.

    Raises:
        UsageError: it is one folder, and a run compared with itself proves nothing.
        Refused: the runs have other probes.
    """
    if Path(a).resolve() == Path(b).resolve():
        raise UsageError(f"{a} and {b} are one folder: a run is always like itself; `verify judge` compares its sides")
    return _judged((load_run(a), side), (load_run(b), side), profile)


def _judged(a: Kept, b: Kept, profile: str) -> Result:
    if profile not in PROFILES:
        raise UsageError(f"profile {profile!r}: expected one of {', '.join(PROFILES)}")
    rules = PROFILES[profile]
    (run_a, label_a), (run_b, label_b) = a, b
    seeds = run_a.document["seed"], run_b.document["seed"]
    if seeds[0] != seeds[1]:
        raise Refused(f"the runs have other probes: seeds {seeds[0]} and {seeds[1]}")
    # What is kept of many inputs is for the search alone.
    left, right = (
        {key[1:] for key in run.listed() if key[0] == label and not key[3].startswith(POOLED)} for run, label in (a, b)
    )
    common = sorted(left & right)
    compared = _function(a, b, [k for k in common if k[0] == "fp64" and "@" not in k[1]], rules)
    stages = [_accounting(a, b), _sanity(a, b), compared]
    judged = []
    for precision in PRECISIONS[1:]:
        found = _numerics(a, b, [k for k in common if k[0] == precision], precision, rules, compared)
        if found is not None:
            stages.append(found)
            judged += [found] if "ratios" in found.data else []
    where = _where(a, compared, judged)
    stages.append(skipped(parting.KEY, parting.TITLE, "nothing was found to part them"))
    if where is not None:
        values = {"forward": where.forward, "backward": where.backward}
        stages[-1] = stage(parting.KEY, parting.TITLE, [Row("first", "info", where.sentence, values)])
    cause, searched = _why(a, b, compared, judged, where)
    stages.append(searched)
    # Float64 with rounded weights is the baseline's own; of a stage that did not run, what one side left is no loss.
    ran = {s.key for s in stages if s.why_skipped is None}
    key_of = {"fp64": function.KEY, **{p: f"{numerics.KEY}-{p}" for p in PRECISIONS[1:]}}
    apart = [k for k in left ^ right if "@" not in k[1] and key_of[k[0]] in ran]
    lost = sorted("/".join(k) for k in apart)
    if lost:
        stages.append(_missing(lost, of_one_run=run_a is run_b))
    word, reason = judge(stages)
    if word == "same" and lost:
        reason += f"; {len(lost)} traces of one run only were not compared"
    return Result(
        word, reason, _spec(*a), _spec(*b), run_a.facts(label_a), run_b.facts(label_b), tuple(stages), where, cause,
        environment=environment("cpu", int(seeds[0])), profile=profile,
    )  # fmt: skip


def _spec(run: Run, label: str) -> str:
    return f"{run.folder} {label} ({run.document['sides'][label]['spec']})"


def _of(side: Kept, key: str, label: str) -> list[Row]:
    """Return the rows of a stage of the side's run that are about the side, by the label it has here."""
    run, own = side
    return [
        dataclasses.replace(r, name=f"{label}: {r.name.partition(': ')[2]}")
        for r in run.rows(key)
        if r.name.startswith(f"{own}: ")
    ]


def _left_out(key: str, a: Kept, b: Kept) -> str:
    """Return why a stage did not run in one of the runs, or ""."""
    for run in dict.fromkeys(run.folder for run, _ in (a, b)):
        found = next(r for r, _ in (a, b) if r.folder == run).stage(key)
        if found is None:
            return f"{run} has no such stage"
        if found["why_skipped"] is not None:
            return f"not run in {run}: {found['why_skipped']}"
    return ""


def _accounting(a: Kept, b: Kept) -> Stage:
    """Take accounting over; of two runs, compare the fingerprints of their tensors."""
    key, title = "accounting", "Every tensor accounted for"
    why_not = _left_out(key, a, b)
    if why_not:
        return skipped(key, title, why_not)
    if a[0] is b[0]:
        return stage(key, title, a[0].rows(key), ["as the run found it"])
    left, right = (run.document["sides"][label]["tensors"] for run, label in (a, b))
    only = sorted(set(left) ^ set(right))
    unequal = [n for n in left if n in right and left[n] != right[n]]
    rows = [Row("tensors", "ok", f"{len(left)} canonical tensors of A, {len(right)} of B")]
    if only:
        rows.append(Row("only in one side", "fail", ", ".join(collapse(only))))
    if unequal:
        rows.append(Row("same weights", "fail", f"other bits, shape or dtype: {', '.join(collapse(unequal))}"))
    elif left and next(iter(left.values()))[2] is not None:
        rows.append(Row("same weights", "ok", f"{len(left)} tensors have the same fingerprint"))
    rows += [*_of(a, key, "A"), *_of(b, key, "B")]
    others = [x for x in ("A", "B") if x != a[1] and any(k[0] == x for k in a[0].listed())]
    more = f"side {a[1]} of each run was compared; `verify judge` compares the two sides of one"
    return stage(key, title, rows, [more] if others else [])


def _sanity(a: Kept, b: Kept) -> Stage:
    """Take over what sanity found of each side."""
    key, title = "sanity", "Is the test itself sound?"
    why_not = _left_out(key, a, b)
    found = [_of(a, key, "A"), _of(b, key, "B")]
    if why_not or not all(found):
        return skipped(key, title, why_not or "not recorded of both sides")
    return stage(
        key, title, [*found[0], *found[1]], ["as the run found it" if a[0] is b[0] else "as the runs found it"]
    )


def _function(a: Kept, b: Kept, keys: list[Key], rules: Profile) -> Stage:
    key, title = function.KEY, function.TITLE
    why_not = _left_out(key, a, b)
    if why_not or not keys:
        return skipped(key, title, why_not or "no float64 traces of both sides")
    every: dict[str, list[Gap]] = {}
    rows: list[Row] = []
    notes: list[str] = []
    both = set.intersection(*(set(run.document["sides"][label]["tensors"]) for run, label in (a, b)))
    # Probe weights first, as they are run.
    for precision, weights, inputs in sorted(keys, key=lambda k: k[1] != "probe"):
        x, y = (run.trace(label, precision, weights, inputs) for run, label in (a, b))
        found = every[f"{weights}/{inputs}"] = gaps(x, y)
        rows.append(function.row_of(weights, inputs, tuple(found), rules.function))
        lost, said = function.lost_rows(weights, inputs, missing(x, y), both)
        rows += lost
        notes += said
    data = {"gaps": pooled(every.values()), "threshold": rules.function, "by_run": every}
    return stage(key, title, rows, notes, data)


def _numerics(a: Kept, b: Kept, keys: list[Key], precision: str, rules: Profile, compared: Stage) -> Stage | None:
    """Judge a precision that the runs have; None when neither has it."""
    p, key = precision_of(precision), f"{numerics.KEY}-{precision}"
    title = f"Same numerics? ({p.title})"
    stopped = [r for r in (*_of(a, key, "A"), *_of(b, key, "B")) if r.name.endswith(": runs")]
    if stopped:
        return stage(key, title, stopped)
    left_out = _left_out(key, a, b)
    if not keys or (left_out and a[0] is b[0]):
        known = any(run.stage(key) is not None for run, _ in (a, b))
        return skipped(key, title, left_out or "no traces of both sides") if known else None
    errors: tuple[list[list[Gap]], list[list[Gap]]] = ([], [])
    rows: list[Row] = []
    both = set.intersection(*(set(run.document["sides"][label]["tensors"]) for run, label in (a, b)))
    for _, weights, inputs in keys:
        rounded = f"{weights}@{str(p.dtype).removeprefix('torch.')}"
        known = (a[1], "fp64", rounded, inputs) in a[0].listed()
        reference = a[0].trace(a[1], "fp64", rounded if known else weights, inputs)
        traces = [run.trace(label, precision, weights, inputs) for run, label in (a, b)]
        for found, into in zip(gaps_each(reference, traces, numerics.VALUES), errors, strict=True):
            into.append(found)
        rows += function.lost_rows(weights, inputs, missing(*traces), both)[0]
    left, right = (pooled(e) for e in errors)
    ratios = ratios_of(left, right, p.unit)
    limits = limits_of(rules, a[0].document["spread"].get(key, {}))
    judged = judge_rows(left, right, ratios, limits)
    rows += [r for r in (*_of(a, key, "A"), *_of(b, key, "B")) if r.name.endswith(AS_ON_CUDA)]
    notes = numerics.tf32_like({"A": left, "B": right}, judged) if precision == "fp32" and _same(compared) else []
    data = {"a": left, "b": right, "ratios": ratios, "limits": limits, "unit": p.unit, "weights": keys[0][1]}
    return stage(key, title, [*judged, *rows], notes, data)


def _same(compared: Stage) -> bool:
    return compared.why_skipped is None and not compared.failures


def _where(a: Kept, compared: Stage, judged: list[Stage]) -> Where | None:
    """Return where they part by what was kept; blocks are not run alone, for that takes the networks."""
    more = "; blocks are run alone only where the networks are"
    for name, found in compared.data.get("by_run", {}).items():
        off, threshold = gaps_as_map(found), float(compared.data["threshold"])
        if any(not v <= threshold for v in off.values()):
            weights, inputs = name.split("/")
            taps = list(a[0].trace(a[1], "fp64", weights, inputs).taps)
            limits = dict.fromkeys(("tap", "tap-grad", "grad"), threshold)
            return profile_of(off, limits, taps, precision="fp64", weights=weights, inputs=inputs, more=more)
    bad = next((s for s in judged if s.differences), None)
    if bad is None:
        return None
    taps = [g.name for g in bad.data["a"] if g.kind == "tap"]
    precision, weights = bad.key.partition("-")[2], bad.data["weights"]
    limits = bad.data["limits"]
    return profile_of(bad.data["ratios"], limits, taps, precision=precision, weights=weights, inputs="all", more=more)


def _why(a: Kept, b: Kept, compared: Stage, judged: list[Stage], where: Where | None) -> tuple[Cause | None, Stage]:
    """Regress on what every fault changes where float64 was not compared; everything else takes the networks."""
    if compared.why_skipped is None:
        if where is None:
            return None, skipped(why.KEY, why.TITLE, "there is nothing to explain")
        found = " and ".join(a[0].document["cause"]) if a[0] is b[0] else ""
        more = f"; the run itself found {found}" if found else "; `verify` of the networks does it"
        return None, skipped(why.KEY, why.TITLE, f"a search for the cause takes the networks{more}")
    left_out = _left_out(why.KEY, a, b)
    if not judged:
        return None, skipped(why.KEY, why.TITLE, left_out or "no precision was judged")
    try:
        cause = regress_runs(a, b)
    except VitconvError as e:
        return None, skipped(why.KEY, why.TITLE, left_out or f"no regression over many inputs: {e}")
    return cause, why.told(cause, half=True, parted=where is not None)


def _missing(lost: list[str], *, of_one_run: bool) -> Stage:
    """Say what was not compared; a run that lacks what it once had is damaged."""
    name = ", ".join(lost[:12]) + (f" and {len(lost) - 12} more" if len(lost) > 12 else "")
    row = Row(name, "fail", "not compared: the run is not whole", blame="undecided")
    return stage("missing", "Traces of one side only", [row if of_one_run else Row(name, "warn", "not compared")])
