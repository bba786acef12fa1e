"""A: names that another library respelled, tensors left out as copies, and rows that code treats as a token's."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from kit import DIM, State, equal, rand_t, save, tensors, vitconv


def with_scales() -> State:
    return rand_t() | {f"blocks.{i}.ls{n}.gamma": 1 + 0.3 * torch.randn(DIM) for i in range(2) for n in (1, 2)}


@pytest.mark.parametrize("prefix", ["", "model.", "module.backbone."])
@pytest.mark.parametrize("name", ["weight", "grandma"], ids=["transformers", "RADIO"])
def test_layer_scale_that_lost_its_gamma(name: str, prefix: str, tmp_path: Path) -> None:
    """huggingface/pytorch-image-models#2324, NVlabs/RADIO#114."""
    state, out = with_scales(), tmp_path / "o.safetensors"
    spelled = {prefix + key.replace("gamma", name): value for key, value in state.items()}
    answer = vitconv("convert", save(tmp_path / "s.pth", spelled), out, "--to", "timm", "--prove")
    assert answer.code == 0, answer.text
    assert equal(tensors(out), state)
    assert "names that another library respelled" in answer.out


def test_norms_with_tensorflows_names(tmp_path: Path) -> None:
    """2noise/ChatTTS#732 tells of the opposite way."""
    state, out = with_scales(), tmp_path / "o.safetensors"
    spelled = {
        key.replace(".weight", ".gamma").replace(".bias", ".beta") if "norm" in key else key: value
        for key, value in state.items()
    }
    answer = vitconv("convert", save(tmp_path / "s.pth", spelled), out, "--to", "timm")
    assert answer.code == 0, answer.text
    assert equal(tensors(out), state)


def test_two_spellings_of_one_tensor_are_not_made_one(tmp_path: Path) -> None:
    state = with_scales() | {"blocks.0.ls1.weight": torch.randn(DIM)}
    answer = vitconv("convert", save(tmp_path / "s.pth", state), tmp_path / "o.safetensors", "--to", "timm")
    assert answer.code == 1, answer.text
    assert "blocks.0.ls1.weight" in answer.err


@pytest.mark.parametrize("block", [0, 1])
def test_tensors_that_save_model_left_out_as_copies(block: int, tmp_path: Path) -> None:
    """huggingface/transformers#38870: their names are in the metadata only."""
    from safetensors.torch import save_file

    state, out = rand_t(), tmp_path / "o.safetensors"
    tied = {f"blocks.{block}.{x}": f"blocks.{1 - block}.{x}" for x in ("mlp.fc1.weight", "mlp.fc1.bias")}
    state |= {key: state[of] for key, of in tied.items()}
    source = tmp_path / "s.safetensors"
    save_file({k: v for k, v in state.items() if k not in tied}, source, metadata={"format": "pt", **tied})
    answer = vitconv("convert", source, out, "--to", "timm", "--prove")
    assert answer.code == 0, answer.text
    assert equal(tensors(out), state)
    assert "the same bytes under several names" in answer.out


def test_metadata_that_names_no_tensor_makes_none(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    state = rand_t()
    del state["blocks.1.mlp.fc1.bias"]
    source = tmp_path / "s.safetensors"
    save_file(state, source, metadata={"blocks.1.mlp.fc1.bias": "blocks.2.mlp.fc1.bias"})
    assert vitconv("convert", source, tmp_path / "o.safetensors", "--to", "timm").code == 1


@pytest.mark.parametrize(("grid", "rows", "warned"), [((4, 3), 1, True), ((4, 3), 0, False), ((6, 3), 1, True)])
def test_a_row_too_many_without_a_class_token_is_warned_of(
    grid: tuple[int, int], rows: int, warned: bool, tmp_path: Path
) -> None:
    """mikeqzy/MoRo#3: ViTPose adds the first row to all others, and has no class token."""
    state = rand_t(head=False, grid=grid)
    del state["cls_token"]
    state["pos_embed"] = state["pos_embed"][:, 1 - rows :]
    answer = vitconv("convert", save(tmp_path / "s.pth", state), tmp_path / "o.safetensors", "--to", "timm")
    assert answer.code == 0, answer.text
    assert ("make no grid of several rows" in answer.out) == warned


@pytest.mark.parametrize("prefix", ["", "backbone.", "module.backbone."])
def test_attention_as_mmsegmentation_names_it(prefix: str, tmp_path: Path) -> None:
    """open-mmlab/mmsegmentation#1288."""
    state, out = rand_t(head=False), tmp_path / "o.safetensors"
    answer = vitconv("convert", save(tmp_path / "t.pth", state), tmp_path / "mm.safetensors", "--to", "mmpretrain")
    assert answer.code == 0, answer.text
    names = {"attn.qkv.": "attn.attn.in_proj_", "attn.proj.": "attn.attn.out_proj."}
    spelled: State = {}
    for key, value in tensors(tmp_path / "mm.safetensors").items():
        for one, two in names.items():
            key = key.replace(one, two)
        spelled[prefix + key.removeprefix("backbone.")] = value
    source = save(tmp_path / "s.pth", {"state_dict": spelled, "meta": {"CLASSES": ("a", "b")}})
    answer = vitconv("convert", source, out, "--to", "timm", "--prove")
    assert answer.code == 0, answer.text
    assert equal(tensors(out), state)
    assert "mmsegmentation's configurations say the eps" in answer.out
