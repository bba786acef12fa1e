"""The reference computes what the authors' own code did, to 1e-12 in float64: outputs and all gradients."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from vitconv.conversion.translate import translate
from vitconv.layout.detect import detect
from vitconv.layout.semantics import CHOICES, Semantics
from vitconv.registry import DIALECTS, load
from vitconv.vit.config import config_from_shapes
from vitconv.vit.model import ViT

FOLDER = Path(__file__).parents[2] / "fixtures" / "golden"
# EVA-02's code takes the frequencies of the waves, and logits, in float32, whatever the network is in.
ROUNDED = {"rope_precision": "float32-frequencies", "attention_precision": "float32"}
# {golden: (dialect, facts beside those of the author and of the trace)}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "dino/dino-tiny": ("dino", {}),
    "moco-v3/moco-v3-tiny": ("moco-v3", {}),
    "ijepa/ijepa-tiny": ("ijepa", {"pooling": "none"}),
    "deit/deit-distilled": ("deit", {}),
    "deit/deit-3": ("deit", {}),
    "deit/deit-parallel": ("deit", {}),
    "deit/deit-parallel-plain": ("deit", {}),
    "dinov2/dinov2-plain": ("dinov2", {}),
    "dinov2/dinov2-registers": ("dinov2", {}),
    "dinov2/dinov2-swiglu": ("dinov2", {}),
    "dinov3/dinov3-masked": ("dinov3", {}),
    "dinov3/dinov3-swiglu": ("dinov3", {}),
    "dinov3/dinov3-no-bias": ("dinov3", {}),
    "dinov3/dinov3-untied": ("dinov3", {}),
    "beit/beit-author": ("beit", {"pooling": "avg"}),
    "beit/beit-author-square": ("beit", {"pooling": "avg"}),
    "beit/beit-author-shared": ("beit", {"pooling": "token"}),
    "eva/eva-02": ("eva", {"pooling": "avg", "rope_reference": (4, 4), **ROUNDED}),
    "eva/eva-02-mlp": ("eva", {"pooling": "token", "rope_reference": (2, 2), **ROUNDED}),
    "clip/clip-tower": ("clip", {}),
    "open-clip/open-clip-tower": ("open-clip", {"pooling": "token"}),
    "open-clip/open-clip-coca": ("open-clip", {"pooling": "token", "pool_heads": 3}),
    "internvit/internvit-tiny": ("internvit", {}),
    "internvit/internvit-rms": ("internvit", {}),
    "npz/vit-jax-published": ("vit-jax", {}),
    "npz/vit-jax-current": ("vit-jax", {}),
    "npz/vit-jax-gap": ("vit-jax", {}),
    "npz/big-vision-token": ("big-vision", {"pooling": "token"}),
    "npz/big-vision-gap": ("big-vision", {}),
    # pool_type "0": the first of the patches.
    "npz/big-vision-first": ("big-vision", {}),
    "npz/big-vision-map": ("big-vision", {}),
    "npz/big-vision-scan": ("big-vision", {}),
    "mmpretrain/mmpretrain-tiny": ("mmpretrain", {"pooling": "token"}),
    "mmpretrain/mmpretrain-clip": ("mmpretrain", {"pooling": "token"}),
    "mmpretrain/mmpretrain-avg": ("mmpretrain", {}),
    "mmpretrain/mmpretrain-representation": ("mmpretrain", {"pooling": "token"}),
    "jeonsworld/jeonsworld-tiny": ("jeonsworld", {}),
    "pretrained-vit/pretrained-vit-tiny": ("pretrained-vit", {}),
    "pretrained-vit/pretrained-vit-representation": ("pretrained-vit", {}),
    "vit-pytorch/vit-pytorch-0.40.2": ("vit-pytorch", {}),
    "vit-pytorch/vit-pytorch-1.2.0": ("vit-pytorch", {}),
    "vit-pytorch/vit-pytorch-1.6.9": ("vit-pytorch", {}),
    "vit-pytorch/vit-pytorch-1.26.14": ("vit-pytorch", {}),
}
SIDES = {"vit-pytorch": {"p": 4, "q": 4}}


def read(name: str) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Any]]:
    """Return weights, trace and facts."""
    path = FOLDER / f"{name}.trace.safetensors"
    with safe_open(path, "pt") as f:
        facts = json.loads(f.metadata()["facts"])
    if name.startswith("npz/"):
        return {k: torch.from_numpy(v) for k, v in np.load(FOLDER / f"{name}.npz").items()}, load_file(path), facts
    return torch.load(FOLDER / f"{name}.pth", weights_only=True), load_file(path), facts


def network(name: str) -> tuple[ViT, dict[str, Tensor], str]:
    """Return the reference with the golden weights, and the trace."""
    dialect, more = CASES[name]
    weights, trace, said = read(name)
    axes = SIDES.get(dialect)
    shapes = {k: tuple(v.shape) for k, v in weights.items()}
    variant = detect(shapes, [load(DIALECTS, dialect)], given=axes).variant
    known = {k: v for k, v in said.items() if k in Semantics.__dataclass_fields__ and v in (*CHOICES.get(k, ()), v)}
    known = {k: tuple(v) if isinstance(v, list) else v for k, v in known.items()}
    told = {k: v for k, v in variant.implies.items() if not isinstance(v, tuple)} | variant.author
    eps = known.get("norm_eps")
    told |= {"final_norm_eps": eps, "embed_norm_eps": eps} | known | more
    if told.get("position") == "sincos":
        told["position"] = "learned" if "rel_pos" not in shapes else "relative"
    facts = Semantics().replaced({k: v for k, v in told.items() if v is not None})
    there = translate(weights, dialect, "canonical", axes=axes)
    config = config_from_shapes({k: tuple(v.shape) for k, v in there.items()}, facts)
    module = ViT(config).double().eval()
    module.load_state_dict(there)
    return module, trace, dialect


@pytest.mark.parametrize("name", CASES)
def test_the_reference_gives_the_author_s_numbers(name: str) -> None:
    module, trace, dialect = network(name)
    x = trace["input"].clone().requires_grad_()
    y = module(x)
    # Another machine's float32 may round a last place otherwise, and the gradients of these traces do.
    close = 2e-6 if dialect == "eva" else 1e-12
    assert near(y, trace["output"]) < close
    y.backward(trace["grad_output"])
    assert x.grad is not None
    assert near(x.grad, trace["grad.input"]) < 10 * close
    weights, _, _ = read(name)
    own = {k.removeprefix("grad."): v for k, v in trace.items() if k.startswith("grad.") and k != "grad.input"}
    # A table that the author keeps fixed has no gradient.
    grads = {k: own.get(k, torch.full_like(v, torch.nan)) for k, v in weights.items() if v.is_floating_point()}
    moved = translate(grads, dialect, "canonical", "gradients", axes=SIDES.get(dialect))
    found = {k: p.grad for k, p in module.named_parameters() if p.grad is not None}
    scale = max(float(g.abs().max()) for g in found.values())
    off = {k: float((g - moved[k]).abs().max()) / scale for k, g in found.items() if not moved[k].isnan().any()}
    assert len(off) >= len(found) - 3
    assert {k: v for k, v in off.items() if v > 10 * close} == {}


def near(a: Tensor, b: Tensor) -> float:
    return float((a - b).detach().abs().max() / b.abs().max())


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("dinov3/dinov3-masked", {"rope_theta": 1e4}),
        ("dinov3/dinov3-masked", {"rope_layout": "interleaved", "rope_reference": (4, 6)}),
        ("eva/eva-02", {"rope_reference": (16, 16)}),
        ("clip/clip-tower", {"activation": "gelu"}),
        ("npz/vit-jax-current", {"activation": "gelu"}),
        ("deit/deit-3", {"norm_eps": 1e-12}),
        ("mmpretrain/mmpretrain-tiny", {"heads": 4}),
    ],
    ids=["theta", "pairs", "reference-grid", "quick-gelu", "tanh", "eps", "heads"],
)
def test_a_wrong_fact_is_no_rounding(name: str, fault: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CASES, name, (CASES[name][0], {**CASES[name][1], **fault}))
    module, trace, _ = network(name)
    if "rope_theta" in fault:
        module.rope.periods = None  # stored periods win over the base
    assert near(module(trace["input"]), trace["output"]) > 1e-8
