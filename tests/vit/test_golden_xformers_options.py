"""The twin against what old releases computed with rotary positions, other activations, layer groups and biases."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from vitconv.vit.xformers_style.encoder import XFormer, xformer

FOLDER = Path(__file__).parents[2] / "fixtures" / "golden" / "xformers-options"
CASES = sorted(p.stem for p in FOLDER.glob("*.pth") if "example" not in p.stem)
TOLERANCE = 1e-12


def load(case: str):
    with safe_open(FOLDER / f"{case}.trace.safetensors", "pt") as f:
        tensors = {k: f.get_tensor(k) for k in f.keys()}  # noqa: SIM118
        facts = {k: json.loads(v) for k, v in f.metadata().items()}
    return torch.load(FOLDER / f"{case}.pth", weights_only=True), tensors, facts


def build(weights, facts) -> XFormer:
    model = xformer(facts["config"], facts["release"]).double()
    model.load_state_dict(weights, strict=True)
    return model


def worst(model: XFormer, trace) -> float:
    """The largest difference over output and gradients, each relative to the largest of its kind of tensor."""
    x = trace["input"].clone().requires_grad_()
    y = model(x)
    (y * trace["grad_output"]).sum().backward()
    found = {k: p.grad for k, p in model.named_parameters()}
    assert {f"grad.{k}" for k in found} | {"grad.input"} == {k for k in trace if k.startswith("grad.")}
    scale = 1e-3 * max(g.abs().max().item() for g in found.values())
    pairs = [(y, trace["output"]), (x.grad, trace["grad.input"]), *((g, trace[f"grad.{k}"]) for k, g in found.items())]
    return max(((a - b).abs().max() / max(b.abs().max().item(), scale)).item() for a, b in pairs)


@pytest.mark.parametrize("case", CASES)
def test_the_twin_reproduces_the_release(case):
    weights, trace, facts = load(case)
    model = build(weights, facts)
    assert list(model.state_dict()) == list(weights)
    assert worst(model, trace) < TOLERANCE


def test_there_are_cases():
    assert len(CASES) == 10


@pytest.mark.parametrize("case", [c for c in CASES if "rotary" in c])
def test_lost_rotary_positions_are_seen(case):
    weights, trace, facts = load(case)
    model = build(weights, facts)
    for block in model.modules():
        if hasattr(block, "rotary_embeddings"):
            block.rotary_embeddings = None
    assert worst(model, trace) > 1e-3


def test_a_lost_mask_is_seen():
    weights, trace, facts = load(next(c for c in CASES if c.endswith("causal")))
    model = build(weights, facts)
    for m in model.modules():
        if hasattr(m, "causal"):
            m.causal = False
    assert worst(model, trace) > 1e-3
