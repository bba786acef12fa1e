"""G: a layer before the classifier (pre_logits) is part of the function: timm before 0.8, Google's ImageNet-21k."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from kit import CLASSES, DIM, State, bits, rand_t, save, tensors, vitconv


def with_layer(width: int, *, head: bool) -> State:
    gen = torch.Generator().manual_seed(7)
    state = rand_t(head=False)
    state |= {"pre_logits.fc.weight": torch.randn(width, DIM, generator=gen), "pre_logits.fc.bias": torch.randn(width)}
    if head:
        state |= {"head.weight": torch.randn(CLASSES, width, generator=gen), "head.bias": torch.randn(CLASSES)}
    return state


@pytest.mark.parametrize("width", [DIM, 24])
@pytest.mark.parametrize(("to", "key"), [("torchvision", "heads.pre_logits.weight"), ("vit-jax", "pre_logits/kernel")])
def test_the_layer_goes_where_both_have_a_place(width: int, to: str, key: str, tmp_path: Path) -> None:
    """huggingface/pytorch-image-models#373, lukemelas/PyTorch-Pretrained-ViT#6."""
    state, out = with_layer(width, head=True), tmp_path / "o.safetensors"
    source = save(tmp_path / "s.pth", state)
    answer = vitconv("convert", source, out, "--to", to, "--set", "heads=4", "--prove")
    assert answer.code == 0, answer.text
    want = state["pre_logits.fc.weight"]
    assert bits(tensors(out)[key]) == bits(want if to == "torchvision" else want.T)


def test_without_a_classifier_it_is_the_pooler_of_transformers(tmp_path: Path) -> None:
    """google-research/vision_transformer#20."""
    state, out = with_layer(DIM, head=False), tmp_path / "o.safetensors"
    answer = vitconv("convert", save(tmp_path / "s.pth", state), out, "--to", "hf-vit")
    assert answer.code == 0, answer.text
    assert bits(tensors(out)["pooler.dense.weight"]) == bits(state["pre_logits.fc.weight"])


@pytest.mark.parametrize("to", ["timm", "hf-vit"])
@pytest.mark.parametrize("width", [DIM, 24])
def test_a_classifier_is_not_written_without_the_layer_it_reads(to: str, width: int, tmp_path: Path) -> None:
    """huggingface/pytorch-image-models#352: the width of the classifier alone does not tell the cause."""
    out = tmp_path / "o.safetensors"
    answer = vitconv("convert", save(tmp_path / "s.pth", with_layer(width, head=True)), out, "--to", to)
    assert answer.code == 3, answer.text
    assert "pool.dense.weight, pool.dense.bias" in answer.err
    assert "has no place for a pooler" in answer.err
    assert ("--edit 'drop:head*'" in answer.err) == (width == DIM)
    assert not out.exists()
