"""The twin against what old releases computed with rotary positions, other activations, layer groups and biases."""

from __future__ import annotations

from pathlib import Path

import pytest
from golden_xformers_kit import read, worst

from vitconv.vit.xformers_style.encoder import XFormer, xformer

FOLDER = Path(__file__).parents[2] / "fixtures" / "golden" / "xformers-options"
CASES = sorted(p.stem for p in FOLDER.glob("*.pth") if "example" not in p.stem)
TOLERANCE = 1e-12


def build(weights, facts) -> XFormer:
    model = xformer(facts["config"], facts["release"]).double()
    model.load_state_dict(weights, strict=True)
    return model


@pytest.mark.parametrize("case", CASES)
def test_the_twin_reproduces_the_release(case):
    weights, trace, facts = read(FOLDER, case)
    model = build(weights, facts)
    assert list(model.state_dict()) == list(weights)
    assert worst(model, trace) < TOLERANCE


def test_there_are_cases():
    assert len(CASES) == 10


@pytest.mark.parametrize("case", [c for c in CASES if "rotary" in c])
def test_lost_rotary_positions_are_seen(case):
    weights, trace, facts = read(FOLDER, case)
    model = build(weights, facts)
    for block in model.modules():
        if hasattr(block, "rotary_embeddings"):
            block.rotary_embeddings = None
    assert worst(model, trace) > 1e-3


def test_a_lost_mask_is_seen():
    weights, trace, facts = read(FOLDER, next(c for c in CASES if c.endswith("causal")))
    model = build(weights, facts)
    for m in model.modules():
        if hasattr(m, "causal"):
            m.causal = False
    assert worst(model, trace) > 1e-3
