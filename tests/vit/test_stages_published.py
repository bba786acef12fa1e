"""The reference of stages computes what the published code of Swin, PVT and FLatten does, to rounding.

The traces are of fixtures/golden/stages, made with the real code of each; their metadata names repository and commit.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from vitconv.conversion.translate import translate
from vitconv.layout.detect import detect
from vitconv.layout.semantics import Semantics, fact_value
from vitconv.registry import DIALECTS, load_all
from vitconv.vit.stages.config import config_of_stages
from vitconv.vit.stages.model import StageViT

FOLDER = Path(__file__).parents[2] / "fixtures" / "golden" / "stages"
CASES = sorted(p.stem for p in FOLDER.glob("*.safetensors"))
EXACT = 1e-12


def load(name: str) -> tuple[dict[str, torch.Tensor], str, dict[str, Any]]:
    path = FOLDER / f"{name}.safetensors"
    with safe_open(path, "pt") as f:
        said = f.metadata()
    facts = {k: fact_value(k, v) for k, v in json.loads(said["facts"]).items()}
    return load_file(path), said["dialect"], {**facts, "kv_normalised": True}


def part(tensors: dict[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


def off(name: str, **change: Any) -> dict[str, float]:
    """Return by how much each tensor of the trace is missed, relative to the largest of its values or one."""
    tensors, dialect, facts = load(name)
    facts |= change
    state = part(tensors, "weight.")
    canonical = translate(state, dialect, "canonical-stages", facts=facts)
    config = config_of_stages({k: tuple(v.shape) for k, v in canonical.items()}, Semantics(**facts))
    net = StageViT(config).double()
    net.load_state_dict(canonical, strict=True)
    x = tensors["input"].clone().requires_grad_()
    y = net(x)
    y.backward(tensors["grad_output"])
    grads = {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in net.named_parameters()}
    back = translate(grads, "canonical-stages", dialect, "gradients", facts=facts)
    assert x.grad is not None
    ours = {"output": y.detach(), "grad.input": x.grad, **{f"grad.{k}": v for k, v in back.items()}}
    wanted = [k for k in tensors if k == "output" or k.startswith("grad.")]
    return {k: float((ours[k] - tensors[k]).abs().max() / tensors[k].abs().max().clamp_min(1.0)) for k in wanted}


def test_the_traces_are_there() -> None:
    assert len(CASES) == 15


@pytest.mark.parametrize("name", CASES)
def test_its_layout_is_recognised(name: str) -> None:
    tensors, dialect, _ = load(name)
    shapes = {k: tuple(v.shape) for k, v in part(tensors, "weight.").items()}
    assert detect(shapes, load_all(DIALECTS, plugins=False).values()).dialect.name == dialect


@pytest.mark.parametrize("name", CASES)
def test_it_is_reproduced(name: str) -> None:
    found = off(name)
    assert len(found) > 20
    assert {k: e for k, e in found.items() if not e <= EXACT} == {}


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("swinv2-pretrained", {"pretrained_window": (0,)}),
        ("pvt", {"embed_norm_eps": 1e-6}),
        ("flatten-pvt-llss", {"norm_eps": 1e-5}),
        ("flatten-cswin-llss", {"attention": "focused-original"}),
        ("mmseg-swin-whole", {"window_rule": "microsoft"}),
        ("mmpretrain-swin-small", {"window_rule": "torchvision"}),
    ],
    ids=["window", "eps-of-patches", "eps-of-blocks", "era", "whole", "small"],
)
def test_another_fact_does_not_reproduce_it(name: str, change: dict[str, Any]) -> None:
    assert off(name, **change)["output"] > 1e-9
