"""Every plain network that timm can name, at a tiny size: the reference computes it, or the refusal has its reason."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from families_kit import gaps_to_reference, randomised

from vitconv.errors import VitconvError
from vitconv.hosts.base.host import Built, Spec
from vitconv.registry import HOSTS, load

# What of a network has no counterpart here: {part of a key or class: the reason that is told}.
REASONS = {
    "patch_embed.norm.": "a patch embedding with a norm or a stem of its own",
    "ParallelThingsBlock": "ParallelThingsBlock has no counterpart",
    "ParallelScalingBlock": "ParallelScalingBlock has no counterpart",
    "lambda_q1": "differential attention",
    ".gate.": "gated attention",
    "k_proj.bias": "Sapiens 2",
    "q_norm.weight": "norms",
}
MODULES = ("vision_transformer", "deit", "eva", "beit")


def tiny(name: str) -> dict[str, Any]:
    """Return arguments that make a network tiny, of as many patches by as many whatever the patch is."""
    import timm

    with torch.device("meta"):
        net: Any = timm.create_model(name)
    size = {"embed_dim": 64, "depth": 2, "num_heads": 4, "num_classes": 5}
    if not hasattr(net, "patch_embed"):
        return size
    sides = tuple(4 * side for side in net.patch_embed.patch_size)
    many = {"num_kv_heads": 2} if "sapiens2" in name else {}
    return {**size, **many, "img_size": sides}


def signature(module: torch.nn.Module) -> str:
    """Return what tells networks apart: their layers, which show eps, activation and rates, and their tensors."""
    shapes = {k: list(v.shape) for k, v in module.state_dict().items()}
    return json.dumps(shapes) + repr(module) + repr(getattr(module, "global_pool", ""))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("module", MODULES)
def test_each_is_computed_or_refused_with_its_reason(module: str) -> None:
    timm = pytest.importorskip("timm")
    host, seen, wrong, computed = load(HOSTS, "timm"), set(), {}, 0
    for name in timm.list_models(module=module):
        options = tiny(name)
        try:
            net = timm.create_model(name, **options)
        except AssertionError:
            # Its gated MLP cannot be made so small.
            options |= {"mlp_ratio": 4.0}
            net = timm.create_model(name, **options)
        mark = signature(net)
        if mark in seen:
            continue
        seen.add(mark)
        expected = [reason for part, reason in REASONS.items() if part in mark]
        try:
            found: Built = host.build(Spec(name, dict(options)))
            randomised(found.module)
            gap = max(gaps_to_reference(found).values())
            computed += gap < 1e-10
            if not gap < 1e-10:
                wrong[name] = f"gap {gap:.1e}"
        except VitconvError as e:
            if not any(reason in str(e) for reason in expected):
                wrong[name] = str(e)
    assert wrong == {}
    assert computed >= len(seen) // 3
