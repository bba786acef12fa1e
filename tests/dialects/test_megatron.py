"""Megatron-LM's own code, run in float64 on CPU, and its own converter of CLIP: q, k and v of a head stand together.

Traces in fixtures/golden/megatron are of core 0.16.1; see the README there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from vitconv.cli.main import run
from vitconv.conversion.translate import translate

GOLDEN = Path(__file__).parents[2] / "fixtures" / "golden"
HEADS = {"h": 2}
NONE = {"position": "learned", "pooling": "none"}


def golden(name: str) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    folder = GOLDEN / "megatron"
    return torch.load(folder / f"{name}.pth", weights_only=True), load_file(folder / f"{name}.trace.safetensors")


def near(a: Tensor, b: Tensor) -> float:
    return float((a - b).detach().abs().max() / b.detach().abs().max())


def timm_vit(**more: Any) -> nn.Module:
    timm = pytest.importorskip("timm")
    net = timm.models.VisionTransformer(
        **{
            "img_size": 16, "patch_size": 4, "embed_dim": 16, "depth": 2, "num_heads": 2, "num_classes": 0,
            "mlp_ratio": 1.5, "global_pool": "", "final_norm": False, **more,
        },
        norm_layer=lambda n, **k: nn.LayerNorm(n, eps=1e-5, **{x: y for x, y in k.items() if x != "eps"}),
    )  # fmt: skip
    module: nn.Module = net.double().eval()
    return module


CASES: dict[str, dict[str, Any]] = {
    "megatron-clip": {"pre_norm": True},
    "megatron-internvit": {},
    "megatron-siglip": {"class_token": False, "final_norm": True},
}


@pytest.mark.parametrize("name", CASES)
def test_timm_computes_what_its_code_did_forward_and_backward(name: str) -> None:
    weights, trace = golden(name)
    told: dict[str, Any] = {"axes": HEADS, "facts": NONE}
    there = translate(weights, "megatron", "timm", **told)
    module = timm_vit(**CASES[name])
    module.load_state_dict(there)
    x = trace["input"].clone().requires_grad_()
    y = module(x)
    assert near(y, trace["output"]) < 1e-12
    y.backward(trace["grad_output"])
    assert x.grad is not None
    assert near(x.grad, trace["grad.input"]) < 1e-11
    moved = translate({k: trace[f"grad.{k}"] for k in weights}, "megatron", "timm", "gradients", **told)
    found = {k: p.grad for k, p in module.named_parameters() if p.grad is not None}
    scale = max(float(g.abs().max()) for g in found.values())
    assert {k for k, g in found.items() if float((g - moved[k]).abs().max()) > 1e-11 * scale} == set()
    back = translate(there, "timm", "megatron", choices={"norms": "apart"}, **told)
    assert back.keys() == weights.keys()
    assert all(torch.equal(back[k], weights[k]) for k in weights)


@pytest.mark.parametrize("heads", [1, 4])
def test_another_head_count_computes_something_else(heads: int) -> None:
    """No shape tells how many heads a row order is for: relative error of 0.1 and more."""
    weights, trace = golden("megatron-clip")
    module = timm_vit(pre_norm=True)
    module.load_state_dict(translate(weights, "megatron", "timm", axes={"h": heads}, facts=NONE))
    assert near(module(trace["input"]), trace["output"]) > 0.1


@pytest.mark.parametrize("norms", ["apart", "inside"])
def test_its_own_converter_of_clip_is_reproduced(norms: str) -> None:
    tower = torch.load(GOLDEN / "clip" / "clip-tower.pth", weights_only=True)
    made = torch.load(GOLDEN / "megatron" / f"megatron-converter-{norms}.pth", weights_only=True)["model"]
    made = {k: v for k, v in made.items() if v is not None}
    # It leaves out the last norm and the projection.
    tower = {k: v for k, v in tower.items() if not k.startswith(("ln_post", "proj"))}
    full = torch.load(GOLDEN / "clip" / "clip-tower.pth", weights_only=True)
    there = translate(full, "clip", "megatron", axes=HEADS, choices={"norms": norms}, drop=["head.weight"])
    ours = {k: v for k, v in there.items() if not k.startswith("ln_post")}
    assert ours.keys() == made.keys()
    assert all(torch.equal(ours[k], made[k]) for k in made)
    back = translate(made, "megatron", "canonical", axes=HEADS)
    for i in range(2):
        q, k, v = tower[f"transformer.resblocks.{i}.attn.in_proj_weight"].chunk(3)
        assert torch.equal(back[f"blocks.{i}.attn.q.weight"], q)
        assert torch.equal(back[f"blocks.{i}.attn.k.weight"], k)
        assert torch.equal(back[f"blocks.{i}.attn.v.weight"], v)


def test_a_file_of_its_converter_is_read_with_its_empty_states(tmp_path: Path) -> None:
    source = GOLDEN / "megatron" / "megatron-converter-inside.pth"
    command = ["convert", str(source), str(tmp_path / "o.safetensors"), "--to", "canonical"]
    assert run(command) == 3 or not (tmp_path / "o.safetensors").exists()
    assert run([*command, "--axis", "h=2"]) == 0


def test_a_class_token_of_several_rows() -> None:
    weights, _ = golden("megatron-internvit")
    weights["class_token"] = torch.randn(1, 8, 16, dtype=torch.float64)
    weights["position_embeddings.weight"] = torch.randn(24, 16, dtype=torch.float64)
    there = translate(weights, "megatron", "canonical", axes=HEADS)
    assert torch.equal(there["embed.cls"], weights["class_token"][0, 0])
    assert torch.equal(there["embed.reg"], weights["class_token"][0, 1:])
    assert torch.equal(there["embed.pos_reg"], weights["position_embeddings.weight"][1:8])
    assert there["embed.pos"].shape == (16, 16)


def test_one_shard_of_tensor_parallelism_is_no_narrower_network(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every shape of a shard is that of a network with half the heads; none of them contradicts another."""
    weights, _ = golden("megatron-clip")
    shard = {}
    for key, value in weights.items():
        if "linear_qkv" in key or "linear_fc1" in key:
            shard[key] = value.chunk(2)[0].clone()
        elif key.endswith(("linear_proj.weight", "linear_fc2.weight")):
            shard[key] = value.chunk(2, 1)[0].clone()
        else:
            shard[key] = value
    torch.save({"model": shard}, tmp_path / "s.pt")
    command = ["convert", str(tmp_path / "s.pt"), str(tmp_path / "o.safetensors"), "--to", "canonical", "--axis", "h=1"]
    assert run(command) == 3
    assert "one of 2 shards of tensor parallelism" in capsys.readouterr().err
    assert not (tmp_path / "o.safetensors").exists()
    assert run([*command, "--axis", "a=8"]) == 0
