"""D: patch stems and input channels, as their recipes say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kit import DIM, GRID, State, rand_t, save, tensors, vitconv

GOLDEN = Path(__file__).parents[2] / "fixtures" / "golden"
STEM = "patch_embed.proj.weight"


def edited(source: Path, target: Path, edit: str, *more: Any) -> torch.Tensor:
    answer = vitconv("convert", source, target, "--to", "timm", "--edit", edit, *more)
    assert answer.code == 0, answer.text
    return tensors(target)[STEM]


def conv(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.conv2d(x, weight, stride=weight.shape[2:])


def test_d01_one_channel_answers_as_the_three_did(tmp_path: Path) -> None:
    source, state = save(tmp_path / "s.safetensors", rand_t()), rand_t()
    gray = torch.randn(2, 1, 8, 16, generator=torch.Generator().manual_seed(0))
    summed = edited(source, tmp_path / "a.safetensors", "change-channels:1")
    assert torch.allclose(conv(gray, summed), conv(gray.expand(-1, 3, -1, -1), state[STEM]), atol=1e-5)
    mean = edited(source, tmp_path / "b.safetensors", "change-channels:channels=1,how=mean")
    assert torch.allclose(mean * 3, summed, atol=1e-6)


@pytest.mark.parametrize(("have", "want"), [(13, 13), (13, 26), (3, 6), (3, 4)])
def test_d02_more_channels_repeat_and_scale(have: int, want: int, tmp_path: Path) -> None:
    state = rand_t()
    state[STEM] = torch.ones(DIM, have, 4, 4)
    there = edited(save(tmp_path / "s.safetensors", state), tmp_path / "o.safetensors", f"change-channels:{want}")
    assert there.shape == (DIM, want, 4, 4)
    assert torch.allclose(there, torch.full_like(there, have / want))


def test_d02_fewer_channels_are_asked_about(tmp_path: Path) -> None:
    state = rand_t()
    state[STEM] = torch.ones(DIM, 4, 4, 4)
    answer = vitconv(
        "convert", save(tmp_path / "s.safetensors", state), tmp_path / "o.safetensors", "--to", "timm",
        "--edit", "change-channels:3",
    )  # fmt: skip
    assert answer.code in (2, 3)
    assert "how=" in answer.text
    assert not (tmp_path / "o.safetensors").exists()


def test_d04_a_constant_image_keeps_its_answer(tmp_path: Path) -> None:
    source, state = save(tmp_path / "s.safetensors", rand_t()), rand_t()
    more = ("--set", "grid=4x4", "--set", "position_resize=bicubic-antialias")
    grown = edited(source, tmp_path / "a.safetensors", "resize-patch:patch=6,keep=grid", *more)
    plain = edited(source, tmp_path / "b.safetensors", "resize-patch:patch=6,keep=grid,how=bicubic", *more)
    flat = torch.ones(1, 3, 12, 12)
    was = conv(torch.ones(1, 3, 8, 8), state[STEM])[..., 0, 0]
    assert torch.allclose(conv(flat, grown)[..., 0, 0], was, rtol=0.01, atol=0.01)
    assert not torch.allclose(conv(flat, plain)[..., 0, 0], was, rtol=0.5)


def test_d05_kernel_grid_and_table_change_together(tmp_path: Path) -> None:
    source = save(tmp_path / "s.safetensors", rand_t())
    more = ("--set", "grid=4x4", "--set", "position_resize=bicubic-antialias")
    there = edited(source, tmp_path / "o.safetensors", "resize-patch:patch=8", *more)
    assert there.shape == (DIM, 3, 8, 8)
    assert tensors(tmp_path / "o.safetensors")["pos_embed"].shape == (1, 5, DIM)


def rows_of(weight: torch.Tensor, order: str) -> torch.Tensor:
    """Return a patch convolution as a matrix over (c, p, q) or (p, q, c)."""
    return (weight if order == "cpq" else weight.permute(0, 2, 3, 1)).flatten(1)


def siglip2(order: str) -> State:
    """Return a SigLIP 2 tower whose patch matrix is T's stem in an order of pixels."""
    from transformers import Siglip2VisionConfig, Siglip2VisionModel

    sizes = {"hidden_size": DIM, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 64}
    model = Siglip2VisionModel(Siglip2VisionConfig(**sizes, patch_size=4, num_patches=GRID * GRID))
    state: State = dict(model.state_dict())
    state["embeddings.patch_embedding.weight"] = rows_of(rand_t()[STEM], order)
    return state


@pytest.mark.parametrize("order", ["pqc", "cpq"])
def test_d07_rows_of_pixels_have_the_order_of_their_layout(order: str, tmp_path: Path) -> None:
    """The file cannot say in which order its pixels are; the layout does, so the other order gives another kernel."""
    source = save(tmp_path / "s.safetensors", siglip2(order))
    answer = vitconv(
        "convert", source, tmp_path / "o.safetensors", "--to", "hf-siglip", "--axis", "p=4", "--axis", "q=4"
    )
    assert answer.code == 0, answer.text
    there = tensors(tmp_path / "o.safetensors")["vision_model.embeddings.patch_embedding.weight"]
    assert torch.equal(there, rand_t()[STEM]) == (order == "pqc")


def test_d07_the_sides_of_a_patch_that_is_a_row_are_asked_for(tmp_path: Path) -> None:
    source = save(tmp_path / "s.safetensors", siglip2("pqc"))
    answer = vitconv("convert", source, tmp_path / "o.safetensors", "--to", "hf-siglip")
    assert answer.code == 3
    assert "--axis p=" in answer.text


def test_d08_kernels_are_turned_by_what_they_are(tmp_path: Path) -> None:
    """HWIO for the stem, transposed for the linears, heads put together for attention."""
    source = GOLDEN / "npz" / "vit-jax-current.npz"
    answer = vitconv("convert", source, tmp_path / "o.safetensors", "--to", "timm")
    assert answer.code == 0, answer.text
    there, arrays = tensors(tmp_path / "o.safetensors"), np.load(source)
    b, a = "Transformer/encoderblock_1/", "Transformer/encoderblock_1/MultiHeadDotProductAttention_0/"
    assert np.array_equal(there[STEM].numpy(), arrays["embedding/kernel"].transpose(3, 2, 0, 1))
    assert np.array_equal(there["blocks.1.mlp.fc1.weight"].numpy(), arrays[b + "MlpBlock_0/Dense_0/kernel"].T)
    q = arrays[a + "query/kernel"].reshape(16, 16).T
    assert np.array_equal(there["blocks.1.attn.qkv.weight"][:16].numpy(), q)
    out = arrays[a + "out/kernel"].reshape(16, 16).T
    assert np.array_equal(there["blocks.1.attn.proj.weight"].numpy(), out)
    assert vitconv("inspect", source, "--json").json["facts"]["heads"] == 2
