"""Runs on disk: compared on other machines and judged by other rules, without networks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from vitconv.errors import BadFile, Refused, UsageError
from vitconv.parity.rejudge import compare_runs, judge_run
from vitconv.parity.run import load_run
from vitconv.parity.verify import verify
from vitconv.vit.activation import gelu_tanh

QUICK: dict[str, Any] = {"precisions": ["fp32", "bf16"], "skip": ["why"], "inputs": ["coloured"]}


def tanh(module: Any) -> None:
    module.blocks[1].mlp.act = gelu_tanh


@pytest.fixture
def saved(live, tmp_path: Path):
    def of(name: str, b: Any = None, **more: Any) -> Path:
        verify(live(), live() if b is None else b, save=tmp_path / name, **{**QUICK, **more})
        return tmp_path / name

    return of


def test_judging_again_gives_the_verdict_of_the_run(saved, live):
    same, other = judge_run(saved("same")), judge_run(saved("other", live(tanh)))
    assert same.verdict == "same", same.reason
    assert other.verdict == "differs"
    assert [s.key for s in same.stages] == [
        "accounting", "sanity", "function", "numerics-fp32", "numerics-bf16", "where", "why",
    ]  # fmt: skip
    direct = verify(live(), live(tanh), **QUICK)
    for key in ("numerics-fp32", "numerics-bf16"):
        again, before = other.stage(key), direct.stage(key)
        assert again.data["ratios"] == pytest.approx(before.data["ratios"], rel=1e-9)
        assert again.data["limits"] == before.data["limits"]


def test_two_runs_of_one_network_are_the_same_and_of_two_are_not(saved, live):
    first, second = saved("first"), saved("second", live(tanh))
    assert compare_runs(first, second).verdict == "same"
    result = compare_runs(first, second, side="B")
    assert result.verdict == "differs"
    assert "first tap blocks.1.mlp" in result.reason


def test_other_weights_are_seen_by_their_fingerprints(saved, live, weights, tmp_path):
    other = live(given={**weights, "blocks.0.attn.k.bias": weights["blocks.0.attn.k.bias"] + 1})
    result = compare_runs(saved("first"), saved("second", other), side="B")
    assert result.verdict == "differs"
    row = next(r for r in result.stage("accounting").failures)
    assert row.detail == "other bits, shape or dtype: blocks.0.attn.k.bias"


def test_one_changed_element_is_seen(saved):
    path = saved("run")
    file = path / "B" / "fp64-given-coloured.safetensors"
    tensors = load_file(file)
    tensors["grads/blocks.1.norm2.bias"][3] += 1e-6
    save_file(tensors, file)
    result = judge_run(path)
    assert result.verdict == "differs"
    assert "grad blocks.1.norm2.bias" in result.reason


def test_nan_on_disk_is_no_agreement(saved):
    path = saved("run")
    for side in "AB":
        file = path / side / "fp64-given-coloured.safetensors"
        tensors = load_file(file)
        tensors["taps/norm"].view(-1)[0] = torch.nan
        save_file(tensors, file)
    assert judge_run(path).verdict == "undecided"


def test_a_run_without_float64_is_undecided(saved):
    path = saved("run")
    document = json.loads((path / "run.json").read_text())
    document["traces"] = {k: v for k, v in document["traces"].items() if v["precision"] != "fp64"}
    (path / "run.json").write_text(json.dumps(document))
    with pytest.raises(Refused, match="no trace of A, fp64"):
        judge_run(path)


def test_a_run_without_traces_is_refused(saved):
    path = saved("run")
    document = json.loads((path / "run.json").read_text())
    document["traces"] = {}
    (path / "run.json").write_text(json.dumps(document))
    with pytest.raises(Refused, match="two sides are needed"):
        judge_run(path)


def test_runs_of_other_probes_are_not_compared(saved):
    with pytest.raises(Refused, match="seeds 0 and 1"):
        compare_runs(saved("zero"), saved("one", seed=1))


def test_strict_rules_are_stricter(saved):
    path = saved("run")
    default, strict = (
        judge_run(path, profile).stage("numerics-bf16").data["limits"] for profile in ("default", "strict")
    )
    assert all(strict[k] < default[k] for k in strict)
    with pytest.raises(UsageError, match="expected one of default, strict"):
        judge_run(path, "lenient")


def test_a_damaged_or_missing_file_is_said(saved, tmp_path):
    path = saved("run")
    (path / "A" / "fp64-given-coloured.safetensors").write_bytes(b"no")
    with pytest.raises(BadFile, match="not a whole trace"):
        judge_run(path)
    with pytest.raises(UsageError, match=r"no run\.json"):
        load_run(tmp_path)


def test_a_run_is_not_written_over_anything(saved):
    path = saved("run")
    with pytest.raises(UsageError, match="is not empty"):
        saved("run")
    assert (path / "run.json").exists()


def test_a_run_compared_with_itself_proves_nothing(saved):
    path = saved("run")
    with pytest.raises(UsageError, match="one folder"):
        compare_runs(path, path)


def test_a_gradient_that_one_run_lacks_is_no_agreement(saved):
    path = saved("run")
    document = json.loads((path / "run.json").read_text())
    for key, entry in document["traces"].items():
        if key.startswith("B/fp64"):
            entry["order"]["grads"].remove("blocks.1.norm2.bias")
            entry["order"]["taps"].remove("blocks.0.attn")
    (path / "run.json").write_text(json.dumps(document))
    result = judge_run(path)
    assert (result.verdict, result.exit_code) == ("undecided", 3)
    assert "gradients of one side only: blocks.1.norm2.bias" in result.reason
    assert any("tap only of A: blocks.0.attn" in n for n in result.stage("function").notes)


def test_the_sides_that_are_left_out_are_said(saved):
    result = compare_runs(saved("first"), saved("second"))
    assert any("`verify judge` compares the two sides" in n for n in result.stage("accounting").notes)


def test_strict_rules_locate_what_they_fail(live):
    def change(module: Any) -> None:
        whole = type(module).forward
        module.__class__ = type("Kicked", (type(module),), {"forward": lambda self, x: whole(self, x) * (1 + 1e-11)})

    rules = {**QUICK, "skip": ["why"], "precisions": ["fp64"]}
    assert verify(live(), live(change), **rules).verdict == "same"
    result = verify(live(), live(change), profile="strict", **rules)
    assert result.verdict == "differs"
    assert result.where is not None and result.where.precision == "fp64"


def test_a_disk_without_room_is_told_and_keeps_no_half_trace(saved, tmp_path, monkeypatch):
    import safetensors.torch

    def full(_tensors: Any, path: Path) -> None:
        path.write_bytes(b"half")
        raise safetensors.SafetensorError("No space left on device")

    monkeypatch.setattr(safetensors.torch, "save_file", full)
    with pytest.raises(UsageError, match=r"safetensors: the traces cannot be kept: No space left"):
        saved("run")
    assert not list(tmp_path.rglob("*.safetensors"))
