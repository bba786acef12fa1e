"""G: a classifier of the user's own in the place of the library's: one linear layer is read, anything else is not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from kit import DIM, Answer, State, equal, prefixed, rand_t, save, tensors, vitconv

HOME = {"timm": "head", "torchvision": "heads.head", "hf-vit": "classifier"}


def written(path: Path, to: str) -> State:
    if to == "timm":
        return rand_t()
    out = path / "home.safetensors"
    answer = vitconv("convert", save(path / "t.pth", rand_t()), out, "--to", to, "--set", "position=learned")
    assert answer.code == 0, answer.text
    return tensors(out)


def moved(state: State, home: str, place: str) -> State:
    return {key.replace(f"{home}.", f"{place}.") if key.startswith(f"{home}.") else key: t for key, t in state.items()}


def convert(path: Path, state: State, *more: object) -> tuple[Answer, State | None]:
    out = path / "o.safetensors"
    out.unlink(missing_ok=True)
    answer = vitconv("convert", save(path / "s.pth", state), out, "--to", "timm", *more)
    return answer, tensors(out) if out.exists() else None


@pytest.mark.parametrize("prefix", ["", "model.", "module."])
@pytest.mark.parametrize(
    ("layout", "place", "alone"),
    [
        ("torchvision", "heads", True),
        ("torchvision", "heads.1", False),
        ("torchvision", "heads.head.1", False),
        ("timm", "head.1", False),
        ("timm", "head.fc", True),
        ("hf-vit", "classifier.1", False),
    ],
)
def test_one_linear_layer_in_its_place(layout: str, place: str, alone: bool, prefix: str, tmp_path: Path) -> None:
    """mrdbourke/pytorch-deep-learning#1221: `heads.weight` after `model.heads = nn.Linear(...)`."""
    state = prefixed(moved(written(tmp_path, layout), HOME[layout], place), prefix)
    answer, out = convert(tmp_path, state)
    assert answer.code == 0, answer.text
    assert equal(out, rand_t())
    assert f"{place} stands in the place of the classifier" in answer.out
    assert ("an activation would" in answer.out) is not alone


@pytest.mark.parametrize(
    "more",
    [
        {"head.0.weight": torch.randn(16, DIM), "head.0.bias": torch.randn(16), "head.2.weight": torch.randn(5, 16)},
        {"head.1.weight": torch.randn(5, DIM), "head.0.weight": torch.randn(DIM), "head.0.bias": torch.randn(DIM)},
        {"head.1.weight": torch.randn(5, DIM, 1)},
        {"fc.weight": torch.randn(5, DIM)},
    ],
    ids=["two layers", "a norm before", "a convolution", "beside the head"],
)
def test_more_than_that_is_no_classifier_of_the_library(more: State, tmp_path: Path) -> None:
    answer, out = convert(tmp_path, {**rand_t(head=False), **more})
    assert answer.code == 1, answer.text
    assert out is None


@pytest.mark.parametrize("pattern", ["head.1.*", "head*"])
def test_it_can_be_left_out_by_its_name(pattern: str, tmp_path: Path) -> None:
    answer, out = convert(tmp_path, moved(rand_t(), "head", "head.1"), "--drop", pattern)
    assert answer.code == 0, answer.text
    assert equal(out, rand_t(head=False))
