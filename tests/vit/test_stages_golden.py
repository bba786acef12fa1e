"""The reference of stages computes what FLatten's own networks did, before and after the fix, to rounding."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from vitconv.conversion.translate import translate
from vitconv.errors import Refused
from vitconv.layout.detect import detect
from vitconv.layout.semantics import Semantics
from vitconv.registry import DIALECTS, load_all
from vitconv.vit.stages.config import config_of_stages
from vitconv.vit.stages.model import StageViT

FOLDER = Path(__file__).parents[2] / "fixtures" / "golden" / "flatten"
CASES = sorted(p.name.removesuffix(".pth") for p in FOLDER.glob("*model*.pth"))
EXACT = 1e-12


def published(name: str) -> str:
    """Return the formulation of that era's file: only flatten_swin.py had the guard of high powers."""
    if "-fixed-" in name:
        return "focused-upstream-fix"
    return "focused-original" if "-swin-" in name else "focused-original-unguarded"


def load(name: str) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor], dict[str, Any]]:
    trace = FOLDER / f"{name}.trace.safetensors"
    with safe_open(trace, "pt") as f:
        facts = {k: json.loads(v) for k, v in f.metadata().items()}
    return torch.load(FOLDER / f"{name}.pth", weights_only=True), load_file(trace), facts


def run(name: str, attention: str, **more: Any) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Return (what the reference computes, what the trace has), by the name of the tensor in FLatten's file."""
    state, trace, said = load(name)
    dialect = detect({k: tuple(v.shape) for k, v in state.items()}, load_all(DIALECTS, plugins=False).values()).dialect
    canonical = translate(state, dialect.name, "canonical-stages")
    facts = {"norm_eps": 1e-5, "final_norm_eps": 1e-5, "embed_norm_eps": 1e-5, "activation": "gelu"}
    facts |= {"norm_placement": "pre", "pooling": dialect.implies["pooling"], "attention": attention}
    facts |= {"focusing_factor": float(said.get("focusing_factor", 3)), **more}
    config = config_of_stages({k: tuple(v.shape) for k, v in canonical.items()}, Semantics(**facts))
    net = StageViT(config).double()
    net.load_state_dict(canonical, strict=True)
    x = trace["input"].clone().requires_grad_()
    y = net(x)
    y.backward(trace["grad_output"])
    grads = {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in net.named_parameters()}
    size = said.get("img_size", 64)
    told = {"image_size": (size, size), "norm_placement": "pre", "kv_normalised": True}
    back = translate(grads, "canonical-stages", dialect.name, "gradients", facts=told)
    assert x.grad is not None
    return {"output": y.detach(), "grad.input": x.grad, **{f"grad.{k}": v for k, v in back.items()}}, trace


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("variant", ["published", "focused-stable"])
def test_a_whole_network_is_reproduced(name: str, variant: str) -> None:
    mode = {"focused_eps_mode": "mean" if "-fixed-" in name else "sum"} if variant == "focused-stable" else {}
    ours, trace = run(name, published(name) if variant == "published" else variant, **mode)
    keys = [k for k in trace if k not in ("input", "grad_output")]
    assert len(keys) > 60
    for key in keys:
        assert (ours[key] - trace[key]).abs().max() <= EXACT * max(trace[key].abs().max(), 1.0), key


def test_all_golden_networks_are_there() -> None:
    assert len(CASES) == 6


@pytest.mark.parametrize("change", [{"norm_eps": 1e-6}, {"focusing_factor": 4.0}, {"activation": "gelu_tanh"}], ids=str)
def test_another_fact_does_not_reproduce_it(change: dict[str, Any]) -> None:
    ours, trace = run("flatten-fixed-swin-model-LLSS", "focused-upstream-fix", **change)
    assert (ours["output"] - trace["output"]).abs().max() > 1e-7 * trace["output"].abs().max()


def test_the_other_eras_formulation_does_not_reproduce_it() -> None:
    ours, trace = run("flatten-original-pvt-model", "focused-upstream-fix")
    assert (ours["output"] - trace["output"]).abs().max() > 1e-9 * trace["output"].abs().max()


def test_positions_of_another_size_are_refused() -> None:
    """PVT's code resizes its tables in every pass; the reference has them as they are and says so."""
    state, trace, _ = load("flatten-fixed-pvt-model")
    canonical = translate(state, "flatten-pvt", "canonical-stages")
    facts = {"norm_eps": 1e-5, "final_norm_eps": 1e-5, "embed_norm_eps": 1e-5, "activation": "gelu"}
    facts |= {"norm_placement": "pre", "pooling": "avg-unnormed", "attention": "focused-stable", "focusing_factor": 3.0}
    net = StageViT(config_of_stages({k: tuple(v.shape) for k, v in canonical.items()}, Semantics(**facts))).double()
    with pytest.raises(Refused, match=r"a table of \d+ positions on a map of \d+x\d+: PVT's code resizes it"):
        net(torch.zeros_like(trace["input"]).repeat(1, 1, 2, 2))
