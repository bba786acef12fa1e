"""Runs on disk: traces as safetensors and JSON, so that two machines can be compared and rules changed.

A run folder has `run.json` and `A/` and `B/`, or one of them, with one file per trace. No pickle. Where a side does not
run in float64, `A/pooled.safetensors` has what a regression over many inputs needs beside their traces.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitconv.errors import BadFile, Refused, UsageError
from vitconv.layout.semantics import Semantics, semantics_from_json
from vitconv.parity.half_only import POOLED, pooled_images
from vitconv.parity.pair import Pair
from vitconv.parity.side import Side
from vitconv.parity.stage import Row, Stage
from vitconv.parity.trace import Trace
from vitconv.parity.verdict import Result

SCHEMA, VERSION = "vitconv.run", 2
POOLED_FILE = "A/pooled.safetensors"
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
        if key in self.index or not (t.grads or t.inputs.startswith(POOLED)):
            return
        self.index[key] = write_trace(self.folder / f"{key}.safetensors", t, of)

    def _pooled(self) -> None:
        """Write what the reference ViT needs to predict every fault: images, and the baseline's weights."""
        entries = [e for e in self.index.values() if e["side"] == "A" and e["inputs"].startswith(POOLED)]
        if not entries:
            return
        first = next(iter(self.pair.images))
        tensors = {f"images/{first}": self.pair.images[first]}
        tensors |= {f"images/{POOLED}{j}": x for j, x in enumerate(pooled_images(self.pair, len(entries)))}
        weights = self.pair.weights(self.pair.a, entries[0]["weights"])
        tensors |= {f"weights/{name}": t for name, t in weights.items()}
        _save(tensors, self.folder / POOLED_FILE)

    def finish(self, result: Result) -> None:
        """Write `run.json`: what was run, and what was found."""
        pair = self.pair
        self._pooled()
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
            "stages": [_stage(s) for s in result.stages],
            "cause": [] if result.cause is None else list(result.cause.found),
            "spread": {s.key: s.data["spread"] for s in result.stages if "spread" in s.data},
            "verdict": result.verdict,
            "reason": result.reason,
            "command": result.command,
            "environment": dict(result.environment),
        }
        text = json.dumps(document, indent=1, default=str)
        (self.folder / "run.json").write_text(text, encoding="utf-8")


def _stage(s: Stage) -> dict[str, Any]:
    rows = [{"name": r.name, "status": r.status, "detail": r.detail, "blame": r.blame} for r in s.rows]
    return {"key": s.key, "title": s.title, "why_skipped": s.why_skipped, "rows": rows}


def _fingerprints(side: Side) -> dict[str, list[Any]]:
    """Return {canonical name: [dtype, shape, sha256 of the bytes]}; without weights [None, shape, None]."""
    if side.weights is None:
        return {n: [None, list(s), None] for n, s in side.shapes.items()}
    out: dict[str, list[Any]] = {}
    for name, t in side.weights.items():
        data = t.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        out[name] = [str(t.dtype).removeprefix("torch."), list(t.shape), hashlib.sha256(data).hexdigest()]
    return out


def _save(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write tensors.

    Raises:
        UsageError: the disk is full, or the folder cannot be written to.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        save_file({k: v.detach().cpu().contiguous().clone() for k, v in tensors.items()}, path)
    except SafetensorError as e:
        path.unlink(missing_ok=True)
        raise UsageError(f"{path}: the traces cannot be kept: {e}; name another folder with --save, or none") from e


def write_trace(path: Path, t: Trace, of: str) -> dict[str, Any]:
    """Write one trace and return its entry for the index."""
    path.parent.mkdir(parents=True, exist_ok=True)
    tensors: dict[str, Tensor] = {"output": t.output}
    for part in _PARTS:
        tensors |= {f"{part}/{name}": x for name, x in getattr(t, part).items()}
    _save(tensors, path)
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

    def stage(self, key: str) -> Mapping[str, Any] | None:
        """Return what was found in a stage of the run, or None when it had none of this key."""
        return next((s for s in self.document["stages"] if s["key"] == key), None)

    def rows(self, key: str) -> list[Row]:
        """Return the rows of a stage of the run, without their figures."""
        found = self.stage(key)
        return [Row(r["name"], r["status"], r["detail"], blame=r["blame"]) for r in (found or {"rows": []})["rows"]]

    def pooled(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the images of the regression over many inputs, and the baseline's weights.

        Raises:
            BadFile: their file is missing or damaged.
        """
        tensors = _load(self.folder / POOLED_FILE)
        parts = {part: {k.partition("/")[2]: t for k, t in tensors.items() if k.startswith(part)}
                 for part in ("images/", "weights/")}  # fmt: skip
        return parts["images/"], parts["weights/"]

    def facts(self, side: str) -> Semantics:
        """Return what a side computes."""
        return semantics_from_json(json.dumps(self.document["sides"][side]["facts"]))


def read_trace(path: Path, entry: Mapping[str, Any]) -> Trace:
    """Read a trace and its entry of the index."""
    tensors = _load(path)
    try:
        parts = {p: {n: tensors[f"{p}/{n}"] for n in entry["order"][p]} for p in _PARTS}
        output = tensors["output"]
    except KeyError as e:
        raise BadFile(f"{path}: not a whole trace: {e}") from e
    return Trace(
        entry["side"], entry["precision"], entry["inputs"], parts["taps"], parts["tap_grads"], parts["grads"], output,
        entry["loss_scale"], entry["dtypes"], entry["facts"],
    )  # fmt: skip


def _load(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except (OSError, SafetensorError) as e:
        raise BadFile(f"{path}: not a whole trace: {e}") from e


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
        raise BadFile(f"{path}/run.json: expected {SCHEMA} version {VERSION}; save the run anew")
    return Run(Path(path), document)
