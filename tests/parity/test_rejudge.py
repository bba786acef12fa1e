"""Saved runs are judged as the live run was, and a difference planted in any trace is seen."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from vitconv.parity.rejudge import compare_runs, judge_run
from vitconv.parity.verify import verify
from vitconv.vit.activation import gelu_tanh, quick_gelu
from vitconv.vit.attention import Attention
from vitconv.vit.model import ViT

QUICK: dict[str, Any] = {"precisions": ["fp32"], "skip": ["why"], "inputs": ["coloured"]}
HALF: dict[str, Any] = {"precisions": ["amp-bf16"], "inputs": ["coloured"]}


def act(f: Any) -> Any:
    def change(module: Any) -> None:
        for block in module.blocks:
            block.mlp.act = f

    return change


@pytest.fixture
def both(live, tmp_path: Path):
    """Verify, save, and judge what was saved: (live result, judged result)."""

    def of(b: Any, a: Any = None, name: str = "run", **more: Any) -> tuple[Any, Any]:
        result = verify(live() if a is None else a, b, save=tmp_path / name, **{**QUICK, **more})
        return result, judge_run(tmp_path / name)

    return of


PLACES = [
    ("output", "output"),
    ("taps/blocks.0.attn", "tap"),
    ("tap_grads/blocks.1.mlp", "tap-grad"),
    ("grads/blocks.0.attn.q.weight", "grad"),
    ("grads/input", "grad"),
]


@pytest.fixture
def planted(live, tmp_path: Path):
    """Save a run whose sides are the same, and change one element of one trace of B."""

    def of(trace: str, name: str, by: float) -> Path:
        verify(live(), live(), save=tmp_path / "run", **QUICK)
        file = tmp_path / "run" / "B" / f"{trace}.safetensors"
        tensors = load_file(file)
        tensors[name].view(-1)[1] += by
        save_file(tensors, file)
        return tmp_path / "run"

    return of


@pytest.mark.slow
@pytest.mark.parametrize("of", ["probe", "given"])
@pytest.mark.parametrize(("name", "kind"), PLACES)
def test_one_element_of_a_saved_float64_trace(of, name, kind, planted):
    result = judge_run(planted(f"fp64-{of}-coloured", name, 1e-5))
    assert (result.verdict, result.exit_code) == ("differs", 1)
    assert f"{kind} {name.partition('/')[2] or 'output'}" in result.reason


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind"), PLACES)
@pytest.mark.parametrize("by", [1.0, torch.nan, torch.inf])
def test_one_element_of_a_saved_trace_at_a_precision(name, kind, by, planted):
    result = judge_run(planted("fp32-given-coloured", name, by))
    assert (result.verdict, result.exit_code) == ("differs", 1)
    assert result.reason.startswith("the same function in float64, and not the same numerics in fp32")
    assert result.stage("function").status == "ok"


def test_it_is_told_where_without_the_networks(both, live):
    before, after = both(live(act(gelu_tanh)))
    assert after.verdict == before.verdict == "differs"
    for name in ("precision", "weights", "inputs", "forward", "backward"):
        assert getattr(after.where, name) == getattr(before.where, name), name
    for name in ("profile", "backward_profile"):
        assert dict(getattr(after.where, name)) == pytest.approx(dict(getattr(before.where, name)), rel=1e-6)
    assert before.where.blocks and not after.where.blocks
    assert "blocks are run alone only where the networks are" in after.where.sentence
    assert "a search for the cause takes the networks" in after.stage("why").why_skipped


def test_the_cause_that_the_run_found_is_told(both, live):
    before, after = both(live(act(gelu_tanh)), skip=(), precisions=["fp64"])
    assert before.cause.found == ("activation-gelu-tanh",)
    assert after.cause is None
    assert "the run itself found activation-gelu-tanh" in after.stage("why").why_skipped


def test_what_an_edit_changed_is_no_difference_of_weights(write, weights, tmp_path):
    """Fingerprints of a side behind edits are others; accounting knows of the edits, and is taken over."""
    scaled = dict(weights)
    for i in range(2):
        scaled |= {f"blocks.{i}.ls{j}": 0.5 + torch.rand(32, dtype=torch.float64) for j in (1, 2)}
    a = write("a", scaled)
    rules = {**QUICK, "set_b": {"heads": 4}, "edits_b": ["fold-layer-scale"], "save": tmp_path / "run"}
    before = verify(a, "timm:vit_small_patch16_224", **{**rules, "set_b": {
        "img_size": 16, "patch_size": 4, "embed_dim": 32, "depth": 2, "num_heads": 4, "mlp_ratio": 2, "num_classes": 5,
    }})  # fmt: skip
    after = judge_run(tmp_path / "run")
    assert (before.verdict, after.verdict) == ("same", "same"), (before.reason, after.reason)


@pytest.mark.parametrize("stage", ["accounting", "sanity", "function"])
def test_what_the_run_left_out_is_not_made_good_by_judging(stage, both, live):
    before, after = both(live(), skip=["why", stage])
    assert (before.verdict, after.verdict) == ("undecided", "undecided")
    assert "asked to" in (after.stage(stage).why_skipped or "")
    assert stage in after.reason or "not compared in float64" in after.reason


@pytest.mark.parametrize("stage", ["numerics-fp32", "numerics"])
def test_a_precision_that_was_left_out_is_said(stage, both, live):
    before, after = both(live(), precisions=["fp32", "bf16"], skip=["why", stage])
    assert before.verdict == after.verdict == "same"
    assert "asked to" in (after.stage("numerics-fp32").why_skipped or "")
    for result in (before, after):
        assert "fp32" not in result.reason.replace("numerics-fp32", "")
        assert "left out: numerics-fp32 (" in result.reason


class BrokenUnderAutocast(ViT):
    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        if torch.is_autocast_enabled("cuda"):
            raise RuntimeError("no such kernel")
        return super().forward(*args, **kwargs)


def test_a_precision_that_a_side_did_not_run_in_is_no_agreement(both, live):
    before, after = both(live(lambda m: setattr(m, "__class__", BrokenUnderAutocast)), precisions=["fp32", "amp-bf16"])
    assert (before.verdict, after.verdict) == ("undecided", "undecided")
    assert "does not run in amp-bf16" in before.reason and "does not run in amp-bf16" in after.reason


def test_a_run_that_lost_a_trace_is_undecided(both, live, tmp_path):
    both(live(), inputs=["coloured", "single"])
    document = json.loads((tmp_path / "run" / "run.json").read_text())
    del document["traces"]["B/fp64-given-single"]
    (tmp_path / "run" / "run.json").write_text(json.dumps(document))
    result = judge_run(tmp_path / "run")
    assert result.verdict == "undecided"
    assert "fp64/given/single" in result.reason


def test_two_runs_with_other_inputs_say_what_was_not_compared(live, tmp_path):
    for name, inputs in (("one", ["coloured"]), ("two", ["coloured", "single"])):
        verify(live(), live(), save=tmp_path / name, **{**QUICK, "inputs": inputs})
    result = compare_runs(tmp_path / "one", tmp_path / "two")
    assert result.verdict == "same"
    assert "traces of one run only were not compared" in result.reason


def test_sanity_of_one_run_alone_proves_nothing(live, tmp_path):
    verify(live(), live(), save=tmp_path / "one", **QUICK)
    verify(live(), live(), save=tmp_path / "two", **{**QUICK, "skip": ["why", "sanity"]})
    result = compare_runs(tmp_path / "one", tmp_path / "two")
    assert result.verdict == "undecided"
    assert "two: asked to" in result.stage("sanity").why_skipped


class HalfKernel(Attention):
    """An attention whose kernel knows half precision alone."""

    def forward(self, queries: Tensor, others: Tensor, *_: Any) -> Tensor:
        q, k, v = self._split(self.q(queries)), self._split(self.k(others)), self._split(self.v(others))
        if q.dtype not in (torch.float16, torch.bfloat16):
            raise RuntimeError("this kernel takes float16 and bfloat16")
        return self.out(((self.scale * q) @ k.transpose(-2, -1)).softmax(-1).matmul(v).transpose(1, 2).flatten(2))


def half(f: Any) -> Any:
    def change(module: Any) -> None:
        act(f)(module)
        for block in module.blocks:
            block.attn.__class__ = HalfKernel

    return change


@pytest.mark.slow
@pytest.mark.parametrize(("f", "verdict"), [(quick_gelu, "differs"), (gelu_tanh, "undecided")])
def test_a_side_in_half_precision_alone_is_regressed_again(f, verdict, both, live):
    before, after = both(live(half(f)), skip=(), precisions=["amp-bf16"])
    assert (before.verdict, after.verdict) == (verdict, verdict), after.reason
    assert after.cause == before.cause
    assert after.reason.partition("RuntimeError")[2] == before.reason.partition("RuntimeError")[2]
    limits = [next((r for r in x.stage("why").rows if r.name == "detection limit"), None) for x in (before, after)]
    assert limits[0] is not None and limits[0].detail == limits[1].detail
    assert (before.cause.found == ("activation-quick-gelu",)) is (verdict == "differs")


def test_without_the_traces_of_many_inputs_it_is_said(both, live):
    before, after = both(live(half(gelu_tanh)), precisions=["amp-bf16"])
    assert (before.verdict, after.verdict) == ("undecided", "undecided")
    assert "asked to" in (after.stage("why").why_skipped or "")
    assert "B does not run in float64" in (after.stage("function").why_skipped or "")


@pytest.mark.slow
def test_two_machines_are_regressed_on_each_other(live, tmp_path):
    rules = {**HALF, "skip": ["function"]}
    for name, change in (("one", None), ("two", None), ("three", act(quick_gelu))):
        verify(live(change), live(change), save=tmp_path / name, **rules)
    result = compare_runs(tmp_path / "one", tmp_path / "two")
    assert result.verdict == "undecided"
    assert "faults could not be excluded at this noise" in result.reason
    result = compare_runs(tmp_path / "one", tmp_path / "three")
    assert (result.verdict, result.exit_code) == ("differs", 1)
    assert result.cause is not None, result.stage("why").why_skipped
    assert "activation-quick-gelu" in {n for found in (result.cause.found, *result.cause.others) for n in found}
