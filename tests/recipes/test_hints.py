"""What refusals and notes advise: options that exist, values that are right, and nothing that spoils the function."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from kit import rand_t, save, vitconv


def convert(state, tmp_path: Path, to: str, *more: str, config=None):
    source = save(tmp_path / "s" / "model.safetensors", state)
    if config is not None:
        (source.parent / "config.json").write_text(json.dumps(config))
        source = source.parent
    return vitconv("convert", source, tmp_path / "o.safetensors", "--to", to, *more)


@pytest.mark.parametrize("to", ["torchvision", "deit", "dino", "mae", "moco-v3"])
def test_e07_an_eps_that_the_target_does_not_compute_is_said(to: str, tmp_path: Path) -> None:
    told = ("--set", "norm_eps=1e-12", "--set", "final_norm_eps=1e-12", "--set", "activation=gelu")
    state = rand_t(head=to in ("torchvision", "deit"))
    answer = convert(state, tmp_path, to, *told, "--set", "pooling=token")
    assert answer.code == 0, answer.text
    assert f"norm_eps: 1e-12 here, and the code of {to} takes 1e-06" in answer.out
    same = convert(state, tmp_path / "b", to, "--set", "norm_eps=1e-6", "--set", "final_norm_eps=1e-6")
    assert "_eps: 1e-06 here" not in same.out


@pytest.mark.parametrize(("fact", "value", "to"), [("activation", "quick_gelu", "dino"), ("activation", "relu", "mae")])
def test_an_activation_that_the_code_does_not_take_is_said(fact: str, value: str, to: str, tmp_path: Path) -> None:
    answer = convert(rand_t(head=False), tmp_path, to, "--set", f"{fact}={value}")
    assert f"{fact}: {value} here, and the code of {to} takes gelu" in answer.out


def test_filling_is_offered_only_where_it_is_not_felt(tmp_path: Path) -> None:
    state = {k: v for k, v in rand_t().items() if not k.startswith("norm.")}
    answer = convert(state, tmp_path, "hf-vit")
    assert answer.code == 3
    assert "fill:norm.weight" not in answer.err
    assert "no made-up value is right for norm.weight" in answer.err
    bare = {k: v for k, v in rand_t().items() if not k.endswith(("fc1.bias", "fc2.bias", "proj.bias")) or "patch" in k}
    assert "--edit fill:blocks.{i}.mlp.up.bias=0" in convert(bare, tmp_path / "b", "hf-vit").err


def test_heads_are_suggested_by_what_divides_the_width(tmp_path: Path) -> None:
    answer = convert(rand_t(), tmp_path, "hf-vit")
    assert "heads=12" not in answer.out
    assert "heads divides 32: one of 1, 2, 4, 8, 16" in answer.out


def test_keys_that_are_not_known_name_drop_and_drop_names_the_edit(tmp_path: Path) -> None:
    answer = convert(rand_t() | {"something.odd": torch.zeros(3, 3)}, tmp_path, "timm")
    assert "--drop" in answer.err
    answer = convert(rand_t(), tmp_path / "b", "timm", "--drop", "head.*")
    assert answer.code == 2
    assert "--edit drop:head.*" in answer.err


def test_h08_overflow_names_a_dtype_that_holds_the_values(tmp_path: Path) -> None:
    state = {k: v.double() for k, v in rand_t().items()}
    state["norm.weight"][0] = 1e300
    answer = convert(state, tmp_path, "timm", "--dtype", "BF16")
    assert answer.code == 3
    assert "F64 reaches" in answer.err
    assert "3.38953e+38" in answer.err
    assert (
        "BF16 and F32 reach"
        in convert(rand_t() | {"norm.weight": torch.full((32,), 1e6)}, tmp_path / "b", "timm", "--dtype", "F16").err
    )


def test_classes_without_a_classifier_are_said(tmp_path: Path) -> None:
    config = {
        "architectures": ["ViTForImageClassification"],
        "model_type": "vit",
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 128,
        "image_size": 16,
        "patch_size": 4,
        "id2label": {str(i): f"c{i}" for i in range(5)},
    }
    assert (
        "5 classes, and the weights have no classifier"
        in convert(rand_t(head=False), tmp_path, "timm", config=config).out
    )
    assert "have no classifier" not in convert(rand_t(), tmp_path / "b", "timm", config=config).out


def test_d05_keeping_the_grid_needs_none(tmp_path: Path) -> None:
    answer = convert(rand_t(), tmp_path, "timm", "--edit", "resize-patch:patch=8x8,keep=grid")
    assert answer.code == 0, answer.text


@pytest.mark.parametrize("to", ["timm", "hf-vit", "torchvision", "dino"])
def test_a_scale_of_attention_that_no_layout_has_is_refused(to: str, tmp_path: Path) -> None:
    told = ("--set", "heads=4", "--set", "activation=gelu")
    state = rand_t(head=False)
    answer = convert(state, tmp_path, to, *told, "--set", "attention_scale=0.25")
    assert answer.code == 3, answer.text
    assert "attention scale: 0.25 here" in answer.err
    assert convert(state, tmp_path / "b", to, *told, "--set", f"attention_scale={8**-0.5}").code == 0


@pytest.mark.parametrize("to", ["timm", "hf-vit"])
def test_e01_e07_what_is_asked_for_is_not_answered_by_its_example(to: str, tmp_path: Path) -> None:
    """A value that is shown alone is copied, and is wrong for CLIP's GELU or transformers' eps."""
    source = save(tmp_path / "s.safetensors", rand_t())
    answer = vitconv("convert", source, tmp_path / "o", "--to", to)
    assert answer.code == 0, answer.text
    for fact in ("norm_eps=1e-6|1e-5|1e-12", "activation=gelu|quick_gelu|gelu_tanh", "heads=N"):
        assert f"--set {fact}" in answer.out


@pytest.mark.parametrize("to", ["hf-vit", "torchvision", "dino", "vit-jax"])
def test_a_norm_after_pooling_is_named_where_the_target_norms_before(to: str, tmp_path: Path) -> None:
    """RETFound, MAE's fine-tuning: fc_norm and no norm."""
    state = {k.replace("norm.", "fc_norm.") if k.startswith("norm.") else k: v for k, v in rand_t().items()}
    answer = convert(state, tmp_path, to)
    assert answer.code == 3
    assert f"it has instead: pool.norm.weight, pool.norm.bias: {to} has no place for" in answer.err
    assert "norm after pooling" in answer.err
    assert "(fc_norm.weight, fc_norm.bias in the file)" in answer.err
    held = answer.err.split("layouts that hold this network whole: ")[1].split("\n")[0].split(", ")
    assert held[0] == "timm"
    assert "mae" in held
    assert to not in held
    # What is named does hold it.
    for name in held[1:]:
        assert convert(state, tmp_path / name, name, "--set", "pooling=avg").code == 0


def test_nothing_is_named_instead_of_what_was_lost(tmp_path: Path) -> None:
    state = {k: v for k, v in rand_t().items() if not k.startswith("norm.")}
    assert "instead" not in convert(state, tmp_path, "hf-vit").err
    taken = convert(rand_t(head=False), tmp_path / "b", "hf-deit").err
    assert "lacking: embed.dist, embed.pos_dist" in taken
    assert "instead" not in taken
