"""Golden traces of old releases of xformers: reading them, and holding the twin against them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from vitconv.vit.xformers_style.encoder import XFormer


def read(folder: Path, case: str) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Any]]:
    """Return weights, trace and facts of a case."""
    with safe_open(folder / f"{case}.trace.safetensors", "pt") as f:
        tensors = {k: f.get_tensor(k) for k in f.keys()}  # noqa: SIM118
        facts = {k: json.loads(v) for k, v in f.metadata().items()}
    return torch.load(folder / f"{case}.pth", weights_only=True), tensors, facts


def worst(model: XFormer, trace: dict[str, Tensor]) -> float:
    """Return the largest difference over output and gradients, each relative to the largest of its kind of tensor."""
    x = trace["input"].clone().requires_grad_()
    y = model(x)
    (y * trace["grad_output"]).sum().backward()
    found = {k: p.grad for k, p in model.named_parameters()}
    assert {f"grad.{k}" for k in found} | {"grad.input"} == {k for k in trace if k.startswith("grad.")}
    scale = 1e-3 * max(g.abs().max().item() for g in found.values() if g is not None)
    pairs = [(y, trace["output"]), (x.grad, trace["grad.input"]), *((g, trace[f"grad.{k}"]) for k, g in found.items())]
    return max(((a - b).abs().max() / max(b.abs().max().item(), scale)).item() for a, b in pairs)
