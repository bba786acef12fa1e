"""Reproduce what FLatten-Transformer's own attention modules computed, before and after its fp16 fix."""

import json
from pathlib import Path

import pytest
import torch

from vitconv.kernels.focused.module import FocusedLinearAttention, Form, ReducedFocusedAttention

FOLDER = Path(__file__).parents[2] / "fixtures/golden/flatten"
CASES = sorted(path.name.removesuffix(".trace.safetensors") for path in FOLDER.glob("*-attention-*.trace.safetensors"))
# Both sides are float64; a dozen operations of different order cost a few ulp.
EXACT = 1e-12


def load(name):
    from safetensors import safe_open
    from safetensors.torch import load_file

    path = FOLDER / f"{name}.trace.safetensors"
    with safe_open(path, "pt") as file:
        facts = {key: json.loads(value) for key, value in file.metadata().items()}
    return facts, load_file(path), torch.load(FOLDER / f"{name}.pth", weights_only=True)


def published(facts):
    if facts["era"] == "fixed":
        return "upstream-fix"
    return "original" if facts["kind"].startswith("swin") else "original-unguarded"


def build(facts, form):
    if facts["kind"] == "swin attention":
        module = FocusedLinearAttention(facts["dim"], facts["window"], facts["heads"], form=form)
        return module.double(), ()
    grid = facts["grid"]
    module = ReducedFocusedAttention(
        facts["dim"], grid[0] * grid[1], facts["heads"], sr_ratio=facts["sr_ratio"], form=form
    )
    return module.double(), tuple(grid)


def test_all_golden_cases_are_there():
    assert len(CASES) == 6


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("variant", ["published", "stable"])
def test_golden_attention(name, variant):
    facts, trace, weights = load(name)
    eps_mode = "mean" if facts["era"] == "fixed" else "sum"
    chosen = published(facts) if variant == "published" else "stable"
    module, grid = build(facts, Form(variant=chosen, eps_mode=eps_mode))
    module.load_state_dict(weights, strict=True)
    x = trace["input"].clone().requires_grad_()
    y = module(x, *grid)
    y.backward(trace["grad_output"])
    got = {"output": y, "grad.input": x.grad} | {f"grad.{n}": p.grad for n, p in module.named_parameters()}
    assert set(got) | {"input", "grad_output"} == set(trace)
    for key, value in got.items():
        assert (value - trace[key]).abs().max() <= EXACT * trace[key].abs().max(), key


@pytest.mark.parametrize("name", [c for c in CASES if "sr2" in c or "swin" in c])
def test_the_other_eras_eps_does_not_reproduce_it(name):
    facts, trace, weights = load(name)
    module, grid = build(facts, Form(eps_mode="sum" if facts["era"] == "fixed" else "mean"))
    module.load_state_dict(weights, strict=True)
    difference = (module(trace["input"], *grid) - trace["output"]).abs().max() / trace["output"].abs().max()
    assert difference > 1e-9
