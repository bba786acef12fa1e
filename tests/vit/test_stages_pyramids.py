"""transformers and timm compute what the reference does from converted weights of PVT and PVTv2, forward and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from vitconv.cli.main import run
from vitconv.conversion.translate import translate
from vitconv.errors import Refused
from vitconv.layout.detect import detect
from vitconv.layout.semantics import Semantics
from vitconv.registry import DIALECTS, load_all
from vitconv.vit.stages.config import config_of_stages
from vitconv.vit.stages.model import StageViT

CLOSE = 1e-11
SIZES: dict[str, Any] = {
    "hidden_sizes": [8, 12, 16, 24],
    "depths": [2, 1, 1, 2],
    "num_attention_heads": [1, 2, 2, 3],
    "mlp_ratios": [2, 2, 2, 2],
    "num_labels": 5,
    "image_size": 64,
}
# {case: (layout, whether its networks have one eps for all norms)}
CASES = {"hf-pvt": 1e-6, "hf-pvtv2": 1e-6, "hf-pvtv2 linear": 1e-6, "timm-pvtv2": 1e-5, "timm-pvtv2 linear": 1e-5}


def made(case: str) -> nn.Module:
    import timm
    import transformers

    linear = case.endswith("linear")
    if case.startswith("timm"):
        net: nn.Module = timm.models.PyramidVisionTransformerV2(
            num_classes=5,
            depths=SIZES["depths"],
            embed_dims=SIZES["hidden_sizes"],
            num_heads=SIZES["num_attention_heads"],
            mlp_ratios=SIZES["mlp_ratios"],
            linear=linear,
        )
    elif case == "hf-pvt":
        net = transformers.PvtForImageClassification(transformers.PvtConfig(**SIZES))
    else:
        net = transformers.PvtV2ForImageClassification(transformers.PvtV2Config(**SIZES, linear_attention=linear))
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, p in net.named_parameters():
            noise = torch.randn(p.shape, generator=generator, dtype=torch.float64)
            p.copy_(0.4 * noise + (name.endswith("weight") and p.dim() == 1))
    return net.double().eval()


def answer(net: nn.Module, images: Tensor) -> Tensor:
    y = net(images)
    return y.logits if hasattr(y, "logits") else y


def facts(case: str, **more: Any) -> Semantics:
    told = {"norm_eps": 1e-6, "final_norm_eps": 1e-6, "embed_norm_eps": CASES[case], "activation": "gelu"}
    told |= {
        "norm_placement": "pre",
        "kv_normalised": True,
        "attention": "softmax",
        "pooling": "token" if case == "hf-pvt" else "avg",
    }
    return Semantics(**{**told, "stage_heads": (1, 2, 2, 3), "image_size": (64, 64), **more})


def reference(case: str, weights: dict[str, Tensor], **more: Any) -> StageViT:
    config = config_of_stages({k: tuple(v.shape) for k, v in weights.items()}, facts(case, **more))
    net = StageViT(config).double().eval()
    net.load_state_dict(weights)
    return net


def gap(a: Tensor, b: Tensor) -> float:
    return float((a - b).detach().abs().max() / b.detach().abs().max())


@pytest.mark.parametrize("case", CASES)
def test_the_reference_computes_the_same_forward_and_back(case: str) -> None:
    layout, net = case.split()[0], made(case)
    state = {k: v.clone() for k, v in net.state_dict().items()}
    assert detect({k: tuple(v.shape) for k, v in state.items()}, load_all(DIALECTS).values()).dialect.name == layout
    weights = translate(state, layout, "canonical-stages")
    twin = reference(case, weights)
    images = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    want, got = answer(net, images), twin(images)
    assert gap(got, want) < CLOSE
    cotangent = torch.randn(want.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    want.backward(cotangent)
    got.backward(cotangent)
    theirs = translate({k: p.grad for k, p in net.named_parameters()}, layout, "canonical-stages", "gradients")
    worst = max(float(p.grad.abs().max()) for p in twin.parameters() if p.grad is not None)
    for name, p in twin.named_parameters():
        assert p.grad is not None
        assert float((p.grad - theirs[name]).abs().max()) < 10 * CLOSE * worst, name
    back = translate(weights, "canonical-stages", layout, facts=facts(case).known())
    assert back.keys() == state.keys()
    assert all(torch.equal(v, state[k]) for k, v in back.items())


@pytest.mark.parametrize(
    ("case", "fault"),
    [
        ("hf-pvt", {"embed_norm_eps": 1e-5}),
        ("hf-pvtv2", {"embed_norm_eps": 1e-5}),
        ("timm-pvtv2", {"embed_norm_eps": 1e-6}),
        ("hf-pvt", {"stage_heads": (1, 2, 2, 4)}),
        ("timm-pvtv2 linear", {"activation": "gelu_tanh"}),
    ],
    ids=["hf-pvt eps", "hf-pvtv2 eps", "timm eps", "heads", "activation"],
)
def test_another_fact_gives_other_numbers(case: str, fault: dict[str, Any]) -> None:
    net = made(case)
    weights = translate(net.state_dict(), case.split()[0], "canonical-stages")
    images = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    assert gap(reference(case, weights, **fault)(images), answer(net, images)) > 1e-9


def test_between_libraries_the_weights_go_as_they_are() -> None:
    state = made("hf-pvtv2").state_dict()
    there = translate(state, "hf-pvtv2", "timm-pvtv2")
    theirs = translate(there, "timm-pvtv2", "flatten-pvtv2")
    assert torch.equal(
        there["stages.1.blocks.0.attn.kv.weight"][:12], state["pvt_v2.encoder.layers.1.blocks.0.attention.key.weight"]
    )
    again = translate(theirs, "flatten-pvtv2", "hf-pvtv2")
    assert all(torch.equal(v, state[k]) for k, v in again.items())


def test_the_other_generation_is_refused() -> None:
    with pytest.raises(Refused):
        translate(made("hf-pvt").state_dict(), "hf-pvt", "hf-pvtv2")


@pytest.mark.parametrize("case", ["hf-pvt", "hf-pvtv2", "hf-pvtv2 linear"])
def test_a_folder_goes_to_the_canonical_layout_and_opens_again(case: str, tmp_path: Path) -> None:
    import transformers

    net: Any = made(case).float()
    net.save_pretrained(tmp_path / "hf")
    there = tmp_path / "c.safetensors"
    assert run(["convert", str(tmp_path / "hf"), str(there), "--to", "canonical-stages"]) == 0
    assert run(["convert", str(there), str(tmp_path / "back"), "--to", case.split()[0]]) == 0
    again = transformers.AutoModelForImageClassification.from_pretrained(tmp_path / "back")
    images = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    assert torch.equal(again.double().eval()(images).logits, net.double()(images).logits)
