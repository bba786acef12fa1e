"""Runs on disk: traces as safetensors and JSON, so that two machines can be compared and rules changed.

A run folder has `run.json` and `A/` and `B/`, or one of them, with one file per trace. No pickle.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitconv.errors import BadFile, Refused, UsageError
from vitconv.layout.match import collapse
from vitconv.layout.semantics import Semantics, semantics_from_json
from vitconv.parity.compare import Gap, error_against, gaps, missing, pooled
from vitconv.parity.environment import environment
from vitconv.parity.pair import Pair
from vitconv.parity.precision import PRECISIONS, precision_of
from vitconv.parity.side import Side
from vitconv.parity.stage import Row, Stage, skipped, stage
from vitconv.parity.stages.function import KEY, TITLE, lost_rows, row_of
from vitconv.parity.stages.numerics import judge_rows, limits_of, ratios_of
from vitconv.parity.tolerance import PROFILES, Profile
from vitconv.parity.trace import Trace
from vitconv.parity.verdict import Result, Word, judge

SCHEMA, VERSION = "vitconv.run", 1
_PARTS = ("taps", "tap_grads", "grads")


class Recorder:
    """Write every trace of a pair as it is made."""

    def __init__(self, folder: Path, pair: Pair) -> None:
        if folder.exists() and any(folder.iterdir()):
            raise UsageError(f"{folder} is not empty; a run gets a folder of its own")
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.pair = folder, pair
        self.index: dict[str, dict[str, Any]] = {}

    def __call__(self, t: Trace, of: str) -> None:
        """Write one trace; the same run twice is written once."""
        if t.side not in ("A", "B"):
            return
        key = f"{t.side}/{t.precision}-{of}-{t.inputs}"
        if key in self.index or not t.grads:
            return
        self.index[key] = write_trace(self.folder / f"{key}.safetensors", t, of)

    def finish(self, result: Result) -> None:
        """Write `run.json`: what was run, and what was found."""
        pair = self.pair
        sanity = [
            {"name": r.name, "status": r.status, "detail": r.detail, "blame": r.blame}
            for s in result.stages
            if s.key == "sanity"
            for r in s.rows
        ]
        document = {
            "schema": SCHEMA,
            "version": VERSION,
            "sides": {
                s.label: {
                    "spec": s.spec,
                    "dialect": s.dialect,
                    "facts": s.facts.known(),
                    "weights": s.origin,
                    "tensors": _fingerprints(s),
                }
                for s in (pair.a, pair.b)
            },
            "seed": pair.seed,
            "traces": self.index,
            "sanity": sanity,
            "spread": {s.key: s.data["spread"] for s in result.stages if "spread" in s.data},
            "verdict": result.verdict,
            "reason": result.reason,
            "command": result.command,
            "environment": dict(result.environment),
        }
        text = json.dumps(document, indent=1, default=str)
        (self.folder / "run.json").write_text(text, encoding="utf-8")


def _fingerprints(side: Side) -> dict[str, list[Any]]:
    """Return {canonical name: [dtype, shape, sha256 of the bytes]}; without weights [None, shape, None]."""
    if side.weights is None:
        return {n: [None, list(s), None] for n, s in side.shapes.items()}
    out: dict[str, list[Any]] = {}
    for name, t in side.weights.items():
        data = t.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        out[name] = [str(t.dtype).removeprefix("torch."), list(t.shape), hashlib.sha256(data).hexdigest()]
    return out


def write_trace(path: Path, t: Trace, of: str) -> dict[str, Any]:
    """Write one trace and return its entry for the index."""
    from safetensors.torch import save_file

    path.parent.mkdir(parents=True, exist_ok=True)
    tensors: dict[str, Tensor] = {"output": t.output}
    for part in _PARTS:
        tensors |= {f"{part}/{name}": x for name, x in getattr(t, part).items()}
    save_file({k: v.detach().cpu().contiguous().clone() for k, v in tensors.items()}, path)
    order = {part: list(getattr(t, part)) for part in _PARTS}
    return {
        "file": f"{path.parent.name}/{path.name}", "side": t.side, "precision": t.precision, "inputs": t.inputs,
        "weights": of, "loss_scale": t.loss_scale, "order": order, "dtypes": dict(t.dtypes), "facts": dict(t.facts),
    }  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Run:
    """A run folder, read. `traces` are loaded when asked for."""

    folder: Path
    document: Mapping[str, Any]

    def listed(self) -> list[tuple[str, str, str, str]]:
        """Return (side, precision, weights, inputs) of every trace."""
        return [(e["side"], e["precision"], e["weights"], e["inputs"]) for e in self.document["traces"].values()]

    def trace(self, side: str, precision: str, weights: str, inputs: str) -> Trace:
        """Load one trace.

        Raises:
            Refused: the run has none such.
            BadFile: its file is missing or damaged.
        """
        entry = self.document["traces"].get(f"{side}/{precision}-{weights}-{inputs}")
        if entry is None:
            raise Refused(f"{self.folder} holds no trace of {side}, {precision}, {weights} weights, {inputs}")
        return read_trace(self.folder / entry["file"], entry)

    def facts(self, side: str) -> Semantics:
        """Return what a side computes."""
        return semantics_from_json(json.dumps(self.document["sides"][side]["facts"]))


def read_trace(path: Path, entry: Mapping[str, Any]) -> Trace:
    """Read a trace and its entry of the index."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors = load_file(path)
        parts = {p: {n: tensors[f"{p}/{n}"] for n in entry["order"][p]} for p in _PARTS}
        output = tensors["output"]
    except (OSError, SafetensorError, KeyError) as e:
        raise BadFile(f"{path}: not a whole trace: {e}") from e
    return Trace(
        entry["side"], entry["precision"], entry["inputs"], parts["taps"], parts["tap_grads"], parts["grads"], output,
        entry["loss_scale"], entry["dtypes"], entry["facts"],
    )  # fmt: skip


def is_run(path: str | Path) -> bool:
    """Return True for a folder that holds a run."""
    return (Path(path) / "run.json").is_file()


def load_run(path: str | Path) -> Run:
    """Open a run folder.

    Raises:
        UsageError: it is none. BadFile: damaged, or of another version.
    """
    if not is_run(path):
        raise UsageError(f"{path}: no run.json; expected a folder that --save wrote")
    try:
        document = json.loads((Path(path) / "run.json").read_text(encoding="utf-8"))
        good = document["schema"] == SCHEMA and document["version"] == VERSION
    except (ValueError, KeyError, TypeError) as e:
        raise BadFile(f"{path}/run.json: {e}") from e
    if not good:
        raise BadFile(f"{path}/run.json: expected {SCHEMA} version {VERSION}")
    return Run(Path(path), document)


def judge_run(path: str | Path, profile: str = "default") -> Result:
    """Judge the two sides of a run again, by other rules and without networks."""
    run = load_run(path)
    sides = {side for side, *_ in run.listed()}
    if sides != {"A", "B"}:
        raise Refused(f"{path} holds traces of {', '.join(sorted(sides)) or 'nothing'}; two sides are needed")
    return _judged((run, "A"), (run, "B"), profile)


def compare_runs(a: str | Path, b: str | Path, profile: str = "default", side: str = "A") -> Result:
    """Compare one side of two runs, such as of the same network on two machines.

    Raises:
        UsageError: it is one folder, and a run compared with itself proves nothing.
    """
    if Path(a).resolve() == Path(b).resolve():
        raise UsageError(f"{a} and {b} are one folder: a run is always like itself; `verify judge` compares its sides")
    return _judged((load_run(a), side), (load_run(b), side), profile)


def _judged(a: tuple[Run, str], b: tuple[Run, str], profile: str) -> Result:
    if profile not in PROFILES:
        raise UsageError(f"profile {profile!r}: expected one of {', '.join(PROFILES)}")
    rules = PROFILES[profile]
    (run_a, label_a), (run_b, label_b) = a, b
    left = {key[1:] for key in run_a.listed() if key[0] == label_a}
    right = {key[1:] for key in run_b.listed() if key[0] == label_b}
    common = left & right
    stages = list(_recorded(a, b))
    if run_a.document["seed"] != run_b.document["seed"]:
        raise Refused(f"the runs have other probes: seeds {run_a.document['seed']} and {run_b.document['seed']}")
    stages.append(_function(a, b, sorted(k for k in common if k[0] == "fp64" and "@" not in k[1]), rules))
    for precision in PRECISIONS[1:]:
        keys = sorted(k for k in common if k[0] == precision)
        if keys:
            stages.append(_numerics(a, b, keys, precision, rules))
    if run_a is not run_b:
        kept = [x for x in ("A", "B") if x != label_a and any(k[0] == x for k in run_a.listed())]
        if kept:
            more = f"side {label_a} of each run was compared; `verify judge` compares the two sides of one"
            stages[0] = dataclasses.replace(stages[0], notes=(*stages[0].notes, more))
    lost = sorted("/".join(k) for k in left ^ right if "@" not in k[1])
    if lost:
        stages.append(stage("missing", "Traces of one side only", [Row(", ".join(lost), "warn", "not compared")]))
    word: Word
    word, reason = judge(stages)
    return Result(
        word, reason, _spec(*a), _spec(*b), run_a.facts(label_a), run_b.facts(label_b), tuple(stages),
        environment=environment("cpu", int(run_a.document["seed"])), profile=profile,
    )  # fmt: skip


def _spec(run: Run, label: str) -> str:
    return f"{run.folder} {label} ({run.document['sides'][label]['spec']})"


def _recorded(a: tuple[Run, str], b: tuple[Run, str]) -> Iterator[Stage]:
    """Compare the fingerprints of the tensors, and take over what sanity found of each side."""
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
    yield stage("accounting", "Every tensor accounted for", rows)
    found = []
    for label, (run, own) in (("A", a), ("B", b)):
        found += [
            Row(f"{label}: {r['name'].partition(': ')[2]}", r["status"], r["detail"], blame=r["blame"])
            for r in run.document["sanity"]
            if r["name"].startswith(f"{own}: ")
        ]
    yield stage("sanity", "Was the test itself sound?", found) if found else skipped("sanity", "Sanity", "not recorded")


def _function(a: tuple[Run, str], b: tuple[Run, str], keys: list[tuple[str, str, str]], rules: Profile) -> Stage:
    if not keys:
        return skipped(KEY, TITLE, "no float64 traces of both sides")
    every: list[list[Gap]] = []
    rows: list[Row] = []
    notes: list[str] = []
    both = set.intersection(*(set(run.document["sides"][label]["tensors"]) for run, label in (a, b)))
    for precision, weights, inputs in keys:
        x, y = (run.trace(label, precision, weights, inputs) for run, label in (a, b))
        every.append(gaps(x, y))
        rows.append(row_of(weights, inputs, tuple(every[-1]), rules.function))
        found, said = lost_rows(weights, inputs, missing(x, y), both)
        rows += found
        notes += said
    return stage(KEY, TITLE, rows, notes, data={"gaps": pooled(every), "threshold": rules.function})


def _numerics(
    a: tuple[Run, str], b: tuple[Run, str], keys: list[tuple[str, str, str]], precision: str, rules: Profile
) -> Stage:
    p, errors = precision_of(precision), ([], [])  # type: ignore[var-annotated]
    for _, weights, inputs in keys:
        rounded = f"{weights}@{str(p.dtype).removeprefix('torch.')}"
        known = (a[1], "fp64", rounded, inputs) in a[0].listed()
        reference = a[0].trace(a[1], "fp64", rounded if known else weights, inputs)
        for (run, label), into in zip((a, b), errors, strict=True):
            into.append(error_against(reference, run.trace(label, precision, weights, inputs)))
    left, right = (pooled(e) for e in errors)
    ratios = ratios_of(left, right, p.unit)
    limits = limits_of(rules, a[0].document["spread"].get(f"numerics-{precision}", {}))
    rows = judge_rows(left, right, ratios, limits)
    data = {"a": left, "b": right, "ratios": ratios, "limits": limits, "unit": p.unit, "weights": keys[0][1]}
    return stage(f"numerics-{precision}", f"Same numerics? ({p.title})", rows, data=data)
