"""B and H: weights that are not whole in one tensor, and buffers of the attention that say nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from kit import DEPTH, DIM, MLP, State, rand_t, save, tensors, vitconv

QKV = [f"blocks.{i}.attn.qkv.weight" for i in range(DEPTH)]
FC1 = "blocks.0.mlp.fc1"


def to_timm(source: Path, *more: object):
    out = source.parent / "out.safetensors"
    answer = vitconv("convert", source, out, "--to", "timm", *more)
    return answer, tensors(out) if out.exists() else None


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn], ids=["int8", "fp8"])
@pytest.mark.parametrize(
    "scale", [".weight_scale", ".weight_scale_inv", ".SCB", ".weight.absmax", ".weight._scale"], ids=lambda s: s[1:]
)
def test_b07_quantised_weights_are_refused_and_dropping_the_scales_does_not_help(
    dtype: torch.dtype, scale: str, tmp_path: Path
) -> None:
    state: State = {k: (10 * v).to(dtype) if k in QKV else v for k, v in rand_t().items()}
    state |= {k.removesuffix(".weight") + scale: torch.ones(3 * DIM) for k in QKV}
    source = save(tmp_path / "s.pth", state)
    for more in ([], ["--drop", f"*{scale}"]):
        answer, written = to_timm(source, *more)
        assert answer.code == 3 and written is None
        assert "quantised" in answer.err and f"qkv{scale}" in answer.err and "Dequantise" in answer.err


def test_b07_packed_weights_are_refused(tmp_path: Path) -> None:
    state = {k: v for k, v in rand_t().items() if k != f"{FC1}.weight"}
    state |= {f"{FC1}.{x}": torch.zeros(4, 4, dtype=torch.int32) for x in ("qweight", "qzeros")}
    answer, _ = to_timm(save(tmp_path / "s.pth", state | {f"{FC1}.scales": torch.ones(4, 4)}))
    assert answer.code == 3
    assert "quantised" in answer.err


def test_a_quantised_part_that_is_dropped_whole_is_no_matter(tmp_path: Path) -> None:
    beside = {"text.fc.weight": torch.zeros(4, 4, dtype=torch.int8), "text.fc.SCB": torch.ones(4)}
    answer, written = to_timm(save(tmp_path / "s.pth", rand_t() | beside), "--drop", "text.*")
    assert answer.code == 0, answer.text
    assert written is not None


@pytest.mark.parametrize(
    "kept",
    [
        {"weight_g": torch.ones(MLP, 1), "weight_v": torch.ones(MLP, DIM)},
        {"parametrizations.weight.original0": torch.ones(MLP, 1), "parametrizations.weight.original1": torch.ones(MLP)},
        {"weight_orig": torch.ones(MLP, DIM), "weight_mask": torch.ones(MLP, DIM)},
    ],
    ids=["weight norm", "parametrized", "pruned"],
)
def test_factors_of_a_weight_are_told_with_how_to_join_them(kept: State, tmp_path: Path) -> None:
    state = {k: v for k, v in rand_t().items() if k != f"{FC1}.weight"}
    answer, _ = to_timm(save(tmp_path / "s.pth", state | {f"{FC1}.{k}": v for k, v in kept.items()}))
    assert answer.code == 1
    assert "remove_parametrizations" in answer.err and f"{FC1}.{next(iter(kept))}" in answer.err
    assert "--drop" not in answer.err


@pytest.mark.parametrize("key", ["blocks.0.adapter.down.weight", "blocks.1.attn.rope.freqs"])
def test_what_stands_within_layers_is_not_offered_for_dropping(key: str, tmp_path: Path) -> None:
    answer, _ = to_timm(save(tmp_path / "s.pth", rand_t() | {key: torch.randn(3)}))
    assert answer.code == 1
    assert key in answer.err and "within layers" in answer.err and "--drop" not in answer.err


def test_numbers_beside_the_layers_are_none_of_them(tmp_path: Path) -> None:
    answer, _ = to_timm(save(tmp_path / "s.pth", rand_t(head=False) | {"heads.0.weight": torch.randn(5, DIM)}))
    assert answer.code == 1
    assert "heads.0.weight" in answer.err and "--drop" in answer.err


def test_a_missing_tensor_is_named_and_not_an_option(tmp_path: Path) -> None:
    state = {k: v for k, v in rand_t().items() if k != "patch_embed.proj.bias"}
    answer, _ = to_timm(save(tmp_path / "s.pth", state))
    assert answer.code == 1
    assert "missing: patch_embed.proj.bias" in answer.err


@pytest.mark.parametrize("value", [0.0, 0.5])
def test_b01_a_buffer_of_key_biases_is_left_out_when_it_is_zero(value: float, tmp_path: Path) -> None:
    state = rand_t()
    for i in range(DEPTH):
        q, _, v = state.pop(f"blocks.{i}.attn.qkv.bias").chunk(3)
        state |= {f"blocks.{i}.attn.q_bias": q.clone(), f"blocks.{i}.attn.v_bias": v.clone()}
        state[f"blocks.{i}.attn.k_bias"] = torch.full((DIM,), value)
    answer, written = to_timm(save(tmp_path / "s.pth", state), "--set", "position=learned")
    if value:
        assert answer.code == 1 and "k_bias" in answer.err
    else:
        assert answer.code == 0, answer.text
        assert "key biases of zeros" in answer.text
        assert written is not None and not written["blocks.0.attn.qkv.bias"][DIM : 2 * DIM].any()


def test_length_and_direction_of_weights_are_factors(tmp_path: Path) -> None:
    """zer0int/CLIP-fine-tune: weight = r theta / |theta|."""
    state = rand_t()
    weight = state.pop("blocks.0.mlp.fc1.weight")
    length = weight.norm(dim=1, keepdim=True)
    state |= {"blocks.0.mlp.fc1.theta": weight / length, "blocks.0.mlp.fc1.r": length}
    answer = vitconv("convert", save(tmp_path / "s.pth", state), tmp_path / "o.safetensors", "--to", "timm")
    assert answer.code == 1
    assert "kept as factors" in answer.err
    assert "of theta and r the product r theta / |theta|, by rows" in answer.err
