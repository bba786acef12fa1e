"""Weights that are no floats, and biases said twice or under a mask."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from kit import DIM, equal, rand_t, save, tensors, vitconv


def convert(state, tmp_path: Path, *more: str, to: str = "timm"):
    out = tmp_path / "o.safetensors"
    return vitconv("convert", save(tmp_path / "s.safetensors", state), out, "--to", to, *more), out


@pytest.mark.parametrize(
    ("key", "dtype", "says"),
    [
        ("blocks.0.attn.qkv.weight", torch.int8, "quantised without its scale"),
        ("blocks.1.mlp.fc1.weight", torch.uint8, "quantised without its scale"),
        ("blocks.0.attn.qkv.weight", torch.int16, "--set from.bits=BF16"),
        ("blocks.0.norm1.weight", torch.bool, "a mask and no weight"),
        ("norm.weight", torch.int64, "integer dtype"),
        ("norm.bias", torch.complex64, "complex"),
        ("head.weight", torch.int32, "integer dtype"),
    ],
)
def test_b07_h25_weights_that_are_no_floats_are_refused(key: str, dtype, says: str, tmp_path: Path) -> None:
    state = rand_t()
    state[key] = (10 * state[key]).to(dtype)
    answer, out = convert(state, tmp_path)
    assert answer.code == 3, answer.text
    assert key in answer.err
    assert says in answer.err
    assert not out.exists()


def test_h25_sixteen_bits_are_taken_for_bfloat16_when_told(tmp_path: Path) -> None:
    right = {k: v.bfloat16() for k, v in rand_t().items()}
    raw = {k: v.view(torch.int16) for k, v in right.items()}
    assert convert(raw, tmp_path)[0].code == 3
    answer, out = convert(raw, tmp_path, "--set", "from.bits=BF16")
    assert answer.code == 0, answer.text
    assert equal(tensors(out), right)
    assert "taken for the bits of BF16" in answer.out
    assert convert(right, tmp_path, "--set", "from.bits=BF16")[0].code == 2


def split(state, layer: int, *, keep: bool = False):
    bias = state[f"blocks.{layer}.attn.qkv.bias"].clone()
    if not keep:
        del state[f"blocks.{layer}.attn.qkv.bias"]
    state[f"blocks.{layer}.attn.q_bias"], state[f"blocks.{layer}.attn.v_bias"] = (
        bias[:DIM].clone(),
        bias[2 * DIM :].clone(),
    )
    return state


@pytest.mark.parametrize("layer", [0, 1])
def test_b04_layers_of_both_kinds_are_read_each_by_its_own(layer: int, tmp_path: Path) -> None:
    answer, out = convert(split(rand_t(), layer), tmp_path)
    assert answer.code == 0, answer.text
    want = rand_t()
    want[f"blocks.{layer}.attn.qkv.bias"][DIM : 2 * DIM] = 0
    assert equal(tensors(out), want)


def test_b04_a_layer_with_both_kinds_is_refused_unless_they_are_equal(tmp_path: Path) -> None:
    answer, out = convert(split(rand_t(), 0, keep=True), tmp_path)
    assert answer.code == 0, answer.text
    assert equal(tensors(out), rand_t())
    assert "the same as the layer's qkv.bias" in answer.out
    state = split(rand_t(), 0, keep=True)
    state["blocks.0.attn.q_bias"] = state["blocks.0.attn.q_bias"] + 1
    answer, out = convert(state, tmp_path / "b")
    assert answer.code == 3
    assert "blocks.0.attn.qkv.bias" in answer.err


def test_b04_a_layer_without_any_is_not_made_up(tmp_path: Path) -> None:
    state = split(rand_t(), 0)
    del state["blocks.0.attn.q_bias"], state["blocks.0.attn.v_bias"]
    assert convert(state, tmp_path)[0].code == 1


def masked(k: float, rest: float = 1.0):
    mask = torch.full((3 * DIM,), rest)
    mask[DIM : 2 * DIM] = k
    return rand_t() | {f"blocks.{i}.attn.qkv.bias_mask": mask.clone() for i in range(2)}


def test_b05_a_mask_is_folded_into_the_bias(tmp_path: Path) -> None:
    answer, out = convert(masked(0.0), tmp_path)
    assert answer.code == 0, answer.text
    want = rand_t()
    for i in range(2):
        want[f"blocks.{i}.attn.qkv.bias"][DIM : 2 * DIM] = 0
    assert equal(tensors(out), want)
    answer, out = convert(masked(1.0), tmp_path / "ones")
    assert answer.code == 0, answer.text
    assert equal(tensors(out), rand_t())
    assert "masks of ones" in answer.out


def test_b05_a_mask_of_nan_is_refused(tmp_path: Path) -> None:
    answer, _ = convert(masked(float("nan"), float("nan")), tmp_path)
    assert answer.code == 3
    assert "NaN" in answer.err


def test_b05_all_zero_biases_are_said(tmp_path: Path) -> None:
    state = rand_t()
    for i in range(2):
        state[f"blocks.{i}.attn.qkv.bias"].zero_()
    assert "all zero: blocks.{0..1}.attn.qkv.bias" in convert(state, tmp_path)[0].out
    assert "all zero" not in convert(rand_t(), tmp_path / "b")[0].out


def test_b07_per_head_order_is_read_when_it_is_told(tmp_path: Path) -> None:
    state = rand_t()
    for i in range(2):
        for kind in ("weight", "bias"):
            key = f"blocks.{i}.attn.qkv.{kind}"
            x = state[key]
            state[key] = x.reshape(3, 4, 8, *x.shape[1:]).transpose(0, 1).reshape(x.shape).contiguous()
    answer, out = convert(state, tmp_path, "--set", "heads=4", "--set", "from.qkv=per-head")
    assert answer.code == 0, answer.text
    assert equal(tensors(out), rand_t())


def test_b07_per_head_order_needs_the_head_count(tmp_path: Path) -> None:
    answer, _ = convert(rand_t(), tmp_path, "--set", "from.qkv=per-head")
    assert answer.code == 3, answer.text
    assert "qkv=per-head" in answer.err and "--axis h=" in answer.err


def test_a_choice_that_several_layouts_have_keeps_all_of_them(tmp_path: Path) -> None:
    """A network of timm's Eva, and a choice that timm's VisionTransformer has too, which does not fit."""
    state = rand_t()
    for i in range(2):
        q, _, v = state.pop(f"blocks.{i}.attn.qkv.bias").chunk(3)
        state |= {f"blocks.{i}.attn.q_bias": q.clone(), f"blocks.{i}.attn.v_bias": v.clone()}
    answer, _ = convert(state, tmp_path, "--set", "from.position=class+patches")
    assert answer.code == 0, answer.text
    assert "timm-eva" in answer.out


def test_heads_that_the_tensors_contradict(tmp_path: Path) -> None:
    state = rand_t() | {
        f"blocks.{i}.attn.{x}_norm.{y}": torch.ones(8) for i in range(2) for x in "qk" for y in ("weight", "bias")
    }
    answer, _ = convert(state, tmp_path, "--set", "heads=8")
    assert answer.code == 3, answer.text
    assert "the tensors have 4 heads" in answer.err


@pytest.mark.parametrize("order", ["linear-cpq", "linear-pqc"])
def test_d07_a_linear_stem_needs_its_order(order: str, tmp_path: Path) -> None:
    state = rand_t()
    conv = state["patch_embed.proj.weight"]
    rows = conv if order == "linear-cpq" else conv.permute(0, 2, 3, 1)
    state["patch_embed.proj.weight"] = rows.reshape(DIM, -1).contiguous()
    sides = ("--axis", "p=4", "--axis", "q=4")
    asked, _ = convert(state, tmp_path, *sides)
    assert asked.code == 3, asked.text
    assert "from.stem=" in asked.err
    answer, out = convert(state, tmp_path, *sides, "--set", f"from.stem={order}")
    assert answer.code == 0, answer.text
    assert equal(tensors(out), rand_t())


def test_c13_class_and_patches_beside_registers(tmp_path: Path) -> None:
    """17 rows beside a class token and 4 registers: 1 + 16, whatever timm's own classes make of it."""
    state = rand_t() | {"reg_token": torch.randn(1, 4, DIM)}
    for more in ((), ("--set", "grid=4x4"), ("--set", "from.position=class+patches-registers-apart")):
        answer, out = convert(state, tmp_path, *more, "--edit", "fold-cls-position")
        assert answer.code == 0, answer.text
        written = tensors(out)
        assert written["pos_embed"].shape == (1, 16, DIM)
        assert torch.equal(written["cls_token"], state["cls_token"] + state["pos_embed"][:, :1])
        out.unlink()


def test_a26_internvit_becomes_timm(tmp_path: Path) -> None:
    """`encoder.layers.N` with fused q, k, v and bare LayerScales, below the prefix of the whole model."""
    state = rand_t(head=False)
    names = {"cls_token": "class_embedding", "pos_embed": "position_embedding"}
    there = {f"embeddings.{new}": state[old] for old, new in names.items()}
    there |= {k.replace("patch_embed.proj", "embeddings.patch_embedding"): v for k, v in state.items() if "patch" in k}
    there |= {k.replace("blocks", "encoder.layers"): v for k, v in state.items() if k.startswith("blocks")}
    scales = {f"encoder.layers.{i}.ls{j}": torch.full((DIM,), 1.0 + i + j) for i in range(2) for j in (1, 2)}
    answer, out = convert({f"vision_model.{k}": v for k, v in {**there, **scales}.items()}, tmp_path)
    assert answer.code == 0, answer.text
    want = {k: v for k, v in state.items() if not k.startswith("norm.")}
    want |= {k.replace("encoder.layers", "blocks") + ".gamma": v for k, v in scales.items()}
    assert equal(tensors(out), want)


def test_eva_of_timm_with_registers_and_a_table_over_all_tokens(tmp_path: Path) -> None:
    state = {k: v for k, v in rand_t().items() if not k.endswith("qkv.bias")}
    state |= {"reg_token": torch.randn(1, 4, DIM), "pos_embed": torch.randn(1, 1 + 4 + 16, DIM)}
    state |= {f"blocks.{i}.gamma_{j}": torch.randn(DIM) for i in range(2) for j in (1, 2)}
    answer, out = convert(state, tmp_path, to="timm-eva")
    assert answer.code == 0, answer.text
    assert equal(tensors(out), state)
    assert "class+registers+patches" in answer.out


def test_beit_of_timm_with_a_gated_mlp(tmp_path: Path) -> None:
    state = {k: v for k, v in rand_t().items() if not k.endswith("qkv.bias") and "fc1" not in k and k != "pos_embed"}
    for i in range(2):
        b = f"blocks.{i}."
        state |= {f"{b}mlp.fc1_{x}.weight": torch.randn(128, DIM) for x in "gx"}
        state |= {f"{b}mlp.fc1_{x}.bias": torch.randn(128) for x in "gx"}
        state |= {f"{b}attn.{x}_bias": torch.randn(DIM) for x in "qv"}
        state[f"{b}attn.relative_position_bias_table"] = torch.randn(7 * 7 + 3, 4)
    answer, out = convert(state, tmp_path, to="beit")
    assert answer.code == 0, answer.text
    assert equal(tensors(out), state)
    refused, _ = convert(state, tmp_path / "b", to="hf-beit")
    assert refused.code == 3
    assert "gate" in refused.err
