"""B: query, key and value layouts, biases, heads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from kit import DEPTH, DIM, bits, equal, rand_t, save, tensors, vitconv


def test_b04_one_layer_fused_another_apart(tmp_path: Path) -> None:
    state = rand_t()
    q, k, v = state.pop("blocks.1.attn.qkv.weight").chunk(3)
    state |= {f"blocks.1.attn.{n}_proj.weight": t for n, t in (("q", q), ("k", k), ("v", v))}
    answer = vitconv("convert", save(tmp_path / "s.safetensors", state), tmp_path / "o.safetensors", "--to", "hf-vit")
    assert answer.code == 1
    assert "blocks.1.attn.q_proj.weight" in answer.err
    assert not (tmp_path / "o.safetensors").exists()


def test_b10_fused_and_apart_there_and_back(tmp_path: Path) -> None:
    source = save(tmp_path / "t.safetensors", rand_t())
    for step, to in (("tv", "torchvision"), ("hf", "hf-vit"), ("x", "xformers"), ("back", "timm")):
        target = tmp_path / f"{step}.safetensors"
        answer = vitconv("convert", source, target, "--to", to, "--plain", "--prove")
        assert answer.code == 0, answer.text
        source = target
    assert source.read_bytes() == (tmp_path / "t.safetensors").read_bytes()
    assert len(tensors(tmp_path / "hf.safetensors")) == len(rand_t()) + 2 * 2 * DEPTH


def test_b11_heads_are_asked_for_and_only_the_config_waits(tmp_path: Path) -> None:
    source = save(tmp_path / "t.safetensors", rand_t())
    known = ["norm_eps=1e-6", "final_norm_eps=1e-6", "activation=gelu", "grid=4x4"]
    options = [x for fact in known for x in ("--set", fact)]
    answer = vitconv("convert", source, tmp_path / "hf", "--to", "hf-vit", *options)
    assert answer.code == 0, answer.text
    assert "--set heads=" in answer.out
    assert (tmp_path / "hf" / "model.safetensors").exists()
    assert not (tmp_path / "hf" / "config.json").exists()
    for heads in (4, 2):
        folder = tmp_path / f"hf{heads}"
        assert vitconv("convert", source, folder, "--to", "hf-vit", *options, "--set", f"heads={heads}").code == 0
        assert json.loads((folder / "config.json").read_text())["num_attention_heads"] == heads
        assert equal(tensors(folder), tensors(tmp_path / "hf"))


def test_b11_heads_that_do_not_divide(tmp_path: Path) -> None:
    source = save(tmp_path / "t.safetensors", rand_t())
    answer = vitconv("convert", source, tmp_path / "hf", "--to", "hf-vit", "--set", "heads=5", "--set", "norm_eps=1e-6")
    assert "heads=5 does not divide" in answer.text
    assert not (tmp_path / "hf" / "config.json").exists()


def without_key_bias(tmp_path: Path) -> Path:
    """Return an xformers file whose key projection has no bias: bias=(True, False, True, True) in its config."""
    file = tmp_path / "x.safetensors"
    assert vitconv("convert", save(tmp_path / "t.safetensors", rand_t()), file, "--to", "xformers", "--plain").code == 0
    state = {k: v for k, v in tensors(file).items() if not k.endswith("k_proj.bias")}
    return save(tmp_path / "nokb.safetensors", state)


def test_an_absent_key_bias_is_written_as_zeros_and_said(tmp_path: Path) -> None:
    source = without_key_bias(tmp_path)
    answer = vitconv("convert", source, tmp_path / "o.safetensors", "--to", "timm", "--prove")
    assert answer.code == 0, answer.text
    assert "attn.k.bias" in answer.out
    written, state = tensors(tmp_path / "o.safetensors"), rand_t()
    for i in range(DEPTH):
        q, k, v = written[f"blocks.{i}.attn.qkv.bias"].chunk(3)
        assert bits(k) == bytes(4 * DIM)
        want = state[f"blocks.{i}.attn.qkv.bias"].chunk(3)
        assert bits(q) == bits(want[0])
        assert bits(v) == bits(want[2])


@pytest.mark.parametrize("option", [(), ("--drop", "blocks.{i}.attn.k.bias")], ids=["refused", "consented"])
def test_b14_a_target_without_a_key_bias(option: tuple[str, ...], tmp_path: Path) -> None:
    """xformers' shared projection keeps three biases; FusedMLP of two weights keeps none of the MLP's."""
    source = save(tmp_path / "t.safetensors", rand_t())
    out = tmp_path / "o.safetensors"
    drops = ("--drop", "blocks.{i}.mlp.*.bias") if option else ()
    answer = vitconv("convert", source, out, "--to", "xformers", "--set", "mlp=FusedMLP", *drops)
    if "expected one of" in answer.err:
        name = next(x for x in answer.err.replace(",", " ").split() if x.startswith("FusedMLP") and "weights" in x)
        answer = vitconv("convert", source, out, "--to", "xformers", "--set", f"mlp={name}", *drops)
    assert answer.code == (0 if option else 3), answer.text
    assert out.exists() == bool(option)


def test_shared_projection_needs_equal_weights(tmp_path: Path) -> None:
    state = rand_t()
    args = ("--to", "xformers", "--set", "projection=shared")
    answer = vitconv("convert", save(tmp_path / "t.safetensors", state), tmp_path / "o.safetensors", *args)
    assert answer.code == 3
    assert "attn.q.weight" in answer.err or "attn.{q" in answer.err
    for i in range(DEPTH):
        k = state[f"blocks.{i}.attn.qkv.weight"].chunk(3)[1]
        state[f"blocks.{i}.attn.qkv.weight"] = torch.cat([k, k, k])
    answer = vitconv("convert", save(tmp_path / "t.safetensors", state), tmp_path / "o.safetensors", *args)
    assert answer.code == 0, answer.text
    back = vitconv("convert", tmp_path / "o.safetensors", tmp_path / "b.safetensors", "--to", "timm", "--plain")
    assert back.code == 0, back.text
    assert equal(tensors(tmp_path / "b.safetensors"), state)
