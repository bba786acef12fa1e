"""B: biases without a key, masked key biases, rows per head, pairs of rotary positions, as their recipes say."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from kit import DEPTH, DIM, HEADS, State, rand_t, save, tensors, vitconv


def without_key_bias(seed: int = 0) -> State:
    """Return T with q_bias and v_bias in place of qkv.bias, as BEiT and EVA have them."""
    state = rand_t(seed)
    for i in range(DEPTH):
        q, _, v = state.pop(f"blocks.{i}.attn.qkv.bias").chunk(3)
        state |= {f"blocks.{i}.attn.q_bias": q.clone(), f"blocks.{i}.attn.v_bias": v.clone()}
    return state


@pytest.mark.parametrize("to", ["timm", "hf-vit"])
def test_b01_b02_the_key_bias_that_is_not_there_is_zero(to: str, tmp_path: Path) -> None:
    source = save(tmp_path / "s.safetensors", without_key_bias())
    answer = vitconv("convert", source, tmp_path / "o.safetensors", "--to", to)
    assert answer.code == 0, answer.text
    assert "position: taken as learned" in answer.text
    there = tensors(tmp_path / "o.safetensors")
    name = "blocks.0.attn.qkv.bias" if to == "timm" else "vit.encoder.layer.0.attention.attention.key.bias"
    key = there[name][DIM : 2 * DIM] if to == "timm" else there[name]
    assert torch.equal(key, torch.zeros(DIM))
    if to == "timm":
        assert torch.equal(there[name][:DIM], without_key_bias()["blocks.0.attn.q_bias"])
        assert torch.equal(there[name][2 * DIM :], without_key_bias()["blocks.0.attn.v_bias"])


@pytest.mark.parametrize("change", ["gate", "registers", "no table", "told"])
def test_b01_where_queries_and_keys_may_be_turned_it_is_asked(change: str, tmp_path: Path) -> None:
    """EVA-02 has a gated MLP, timm's rotary networks have registers and no table."""
    state, more = without_key_bias(), []
    if change == "gate":
        for i in range(DEPTH):
            state[f"blocks.{i}.mlp.fc1.weight"] = torch.randn(256, DIM)
            state[f"blocks.{i}.mlp.fc1.bias"] = torch.randn(256)
    elif change == "registers":
        state |= {"reg_token": torch.randn(1, 4, DIM), "pos_embed": torch.randn(1, 21, DIM)}
    elif change == "no table":
        del state["pos_embed"]
    else:
        more = ["--set", "position=rope"]
    source = save(tmp_path / "s.safetensors", state)
    answer = vitconv("convert", source, tmp_path / "o.safetensors", "--to", "timm", *more)
    assert answer.code == 3, answer.text
    assert "position" in answer.err and "taken as learned" not in answer.text


def test_b01_the_way_back_leaves_out_only_zeros(tmp_path: Path) -> None:
    state = rand_t()
    source = save(tmp_path / "s.safetensors", state)
    answer = vitconv("convert", source, tmp_path / "o.safetensors", "--to", "timm-eva")
    assert answer.code == 3
    assert "blocks.0.attn.k.bias: not zero" in answer.text
    assert "--drop" in answer.text
    assert not (tmp_path / "o.safetensors").exists()
    for i in range(DEPTH):
        state[f"blocks.{i}.attn.qkv.bias"][DIM : 2 * DIM] = 0
    answer = vitconv("convert", save(tmp_path / "z.safetensors", state), tmp_path / "o.safetensors", "--to", "timm-eva")
    assert answer.code == 0, answer.text
    assert "attn.k.bias: not stored by timm-eva: zeros" in answer.text


def test_b14_a_key_bias_is_dropped_by_consent_and_kept_on_request(tmp_path: Path) -> None:
    source = save(tmp_path / "s.safetensors", rand_t())
    for more in (["--edit", "drop:blocks.{i}.attn.k.bias"], ["--residue", tmp_path / "r.safetensors"]):
        answer = vitconv("convert", source, tmp_path / "o.safetensors", "--to", "timm-eva", *more)
        assert answer.code == 0, answer.text
    assert set(tensors(tmp_path / "r.safetensors")) == {f"blocks.{i}.attn.k.bias" for i in range(DEPTH)}
    answer = vitconv(
        "convert", source, tmp_path / "o.safetensors", "--to", "timm-eva", "--edit", "drop:blocks.{i}.attn.k.bias"
    )
    assert "outputs unchanged: a key bias adds the same number to all scores of a query" in answer.text


def dinov3(mask: float = 0.0) -> State:
    """Return a tiny DINOv3 with a masked key bias; the mask's middle third is `mask`."""
    folder = Path(__file__).parents[2] / "fixtures" / "golden" / "dinov3"
    state: State = torch.load(folder / "dinov3-masked.pth", weights_only=True)
    for key in state:
        if key.endswith("bias_mask"):
            state[key] = torch.cat([torch.ones(32), torch.full((32,), mask), torch.ones(32)]).double()
    return state


def test_b05_what_the_mask_puts_to_zero_is_folded(tmp_path: Path) -> None:
    source = save(tmp_path / "s.pth", dinov3())
    answer = vitconv("convert", source, tmp_path / "o.safetensors", "--to", "hf-dinov3", "--set", "heads=2")
    assert answer.code == 0, answer.text
    assert "attn.k_masked: not stored by hf-dinov3: multiplied by zero" in answer.text
    there = tensors(tmp_path / "o.safetensors")
    assert "layer.0.attention.k_proj.bias" not in there
    assert torch.equal(there["layer.0.attention.v_proj.bias"], dinov3()["blocks.0.attn.qkv.bias"][64:])


@pytest.mark.parametrize("mask", [float("nan"), 0.5])
def test_b05_a_mask_that_is_no_mask_is_refused(mask: float, tmp_path: Path) -> None:
    answer = vitconv("convert", save(tmp_path / "s.pth", dinov3(mask)), tmp_path / "o.safetensors", "--to", "hf-dinov3")
    assert answer.code == 3
    assert "attn.qkv.bias_mask" in answer.text
    assert not (tmp_path / "o.safetensors").exists()


def megatron(state: State) -> State:
    """Return T as Megatron-LM names it, q, k and v of a head together."""

    def per_head(x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(0, (3, HEADS, -1)).transpose(0, 1).reshape(x.shape)

    out = {
        "class_token": state["cls_token"],
        "position_embeddings.weight": state["pos_embed"][0],
        "conv1.weight": state["patch_embed.proj.weight"],
        "conv1.bias": state["patch_embed.proj.bias"],
        "ln_post.weight": state["norm.weight"],
        "ln_post.bias": state["norm.bias"],
    }
    for i in range(DEPTH):
        b, m = f"blocks.{i}.", f"decoder.layers.{i}."
        for kind in ("weight", "bias"):
            out[f"{m}self_attention.linear_qkv.{kind}"] = per_head(state[f"{b}attn.qkv.{kind}"])
            out[f"{m}self_attention.linear_qkv.layer_norm_{kind}"] = state[f"{b}norm1.{kind}"]
            out[f"{m}self_attention.linear_proj.{kind}"] = state[f"{b}attn.proj.{kind}"]
            out[f"{m}mlp.linear_fc1.layer_norm_{kind}"] = state[f"{b}norm2.{kind}"]
            out[f"{m}mlp.linear_fc1.{kind}"] = state[f"{b}mlp.fc1.{kind}"]
            out[f"{m}mlp.linear_fc2.{kind}"] = state[f"{b}mlp.fc2.{kind}"]
    return out


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_b07_b08_rows_per_head_are_put_in_order(dtype: torch.dtype, tmp_path: Path) -> None:
    state = {k: v.to(dtype) for k, v in rand_t(head=False).items()}
    source = save(tmp_path / "s.safetensors", megatron(state))
    answer = vitconv("convert", source, tmp_path / "o.safetensors", "--to", "timm", "--axis", f"h={HEADS}")
    assert answer.code == 0, answer.text
    there = tensors(tmp_path / "o.safetensors")
    for kind in ("weight", "bias"):
        assert torch.equal(there[f"blocks.1.attn.qkv.{kind}"], state[f"blocks.1.attn.qkv.{kind}"])


def test_b07_the_head_count_is_asked_for(tmp_path: Path) -> None:
    source = save(tmp_path / "s.safetensors", megatron(rand_t(head=False)))
    answer = vitconv("convert", source, tmp_path / "o.safetensors", "--to", "timm")
    assert answer.code == 3
    assert "--axis h=" in answer.text
    assert not (tmp_path / "o.safetensors").exists()


def test_b07_one_fused_matrix_of_transformer_engine_is_asked_about(tmp_path: Path) -> None:
    from vitconv.registry import DIALECTS, load

    items = load(DIALECTS, "transformer-engine").variant({"qkv": "stacked"}).items
    axes = {"d": DIM, "a": DIM, "*": 3, "m": 64}
    state = {
        x.key.replace("{i}", "0"): torch.ones(
            [axes["a"] * 3 if "*" in str(a) else axes[a.atoms[0]] for a in x.entry.axes]
        )
        for x in items
    }
    source = save(tmp_path / "s.safetensors", state)
    answer = vitconv("inspect", source, "--axis", f"h={HEADS}")
    assert answer.code == 3
    assert "--set from.qkv=per-head|stacked" in answer.text
    assert vitconv("inspect", source, "--set", "from.qkv=stacked").code == 0


def test_b13_pairs_of_rotary_positions_are_a_fact_that_is_compared(tmp_path: Path) -> None:
    """Interleaved pairs are not halves: what turns neighbours is not written as what turns halves."""
    folder = Path(__file__).parents[2] / "fixtures" / "golden" / "eva"
    answer = vitconv(
        "convert", folder / "eva-02-mlp.pth", tmp_path / "o.safetensors", "--to", "hf-dinov3", "--drop", "*"
    )
    assert answer.code == 3
    assert "interleaved" in answer.text
    assert "half" in answer.text
