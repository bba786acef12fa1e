"""G: heads, pooling, decoders, projections. G05 and G13 are in tests/parity."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from kit import DIM, equal, rand_t, save, tensors, vitconv


def draw(*shape: int, seed: int = 5) -> torch.Tensor:
    return 0.3 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def mae(decoder: int = 16) -> dict[str, torch.Tensor]:
    """Return rand(T) with the decoder of masked pre-training."""
    state = {**rand_t(head=False), "mask_token": draw(1, 1, decoder), "decoder_pos_embed": draw(1, 17, decoder)}
    state |= {"decoder_embed.weight": draw(decoder, DIM), "decoder_embed.bias": draw(decoder)}
    for name, rows, cols in (("attn.qkv", 3, 1), ("attn.proj", 1, 1), ("mlp.fc1", 4, 1), ("mlp.fc2", 1, 4)):
        state[f"decoder_blocks.0.{name}.weight"] = draw(rows * decoder, cols * decoder)
        state[f"decoder_blocks.0.{name}.bias"] = draw(rows * decoder)
    for name in ("decoder_blocks.0.norm1", "decoder_blocks.0.norm2", "decoder_norm"):
        state |= {f"{name}.weight": draw(decoder), f"{name}.bias": draw(decoder)}
    return state | {"decoder_pred.weight": draw(48, decoder), "decoder_pred.bias": draw(48)}


@pytest.mark.parametrize("decoder", [16, 24])
def test_g01_the_encoder_of_a_masked_pre_training_bit_by_bit_and_what_is_new(decoder: int, tmp_path: Path) -> None:
    source, out = save(tmp_path / "mae.pth", mae(decoder)), tmp_path / "out.safetensors"
    answer = vitconv("convert", source, out, "--to", "timm")
    if answer.code == 3:
        # The decoder is part of what the file is: leaving it is consented to by name.
        assert "decoder" in answer.err
        answer = vitconv("convert", source, out, "--to", "timm", "--drop", "decoder*")
    assert answer.code == 0, answer.text
    assert "decoder" in answer.text
    assert equal(tensors(out), rand_t(head=False))
    # The norm is not taken for fc_norm, and a head is not made up.
    timm = pytest.importorskip("timm")
    net = timm.create_model(
        "vit_tiny_patch16_224", img_size=16, patch_size=4, embed_dim=32, depth=2, num_heads=4, num_classes=5,
        global_pool="avg",
    )  # fmt: skip
    missing, spare = net.load_state_dict(tensors(out), strict=False)
    assert {*missing} == {"fc_norm.weight", "fc_norm.bias", "head.weight", "head.bias"}
    assert {*spare} == {"norm.weight", "norm.bias"}
    answer = vitconv(
        "verify", out, "timm:vit_tiny_patch16_224", "--set-b", "img_size=16", "--set-b", "patch_size=4",
        "--set-b", "embed_dim=32", "--set-b", "depth=2", "--set-b", "num_heads=4", "--set-b", "num_classes=5",
        "--set-b", "global_pool=avg", "--set-a", "heads=4",
    )  # fmt: skip
    assert answer.code == 3


def test_g02_g03_an_encoder_alone_is_no_network_with_a_decoder(tmp_path: Path) -> None:
    source = save(tmp_path / "s.safetensors", rand_t(head=False))
    answer = vitconv("convert", source, tmp_path / "out.safetensors", "--to", "mae")
    if answer.code == 0:
        assert not any("decoder" in k for k in tensors(tmp_path / "out.safetensors"))
    else:
        assert answer.code == 3
    answer = vitconv("convert", source, tmp_path / "hf", "--to", "hf-mae")
    assert answer.code == 3, answer.text
    assert "decoder" in answer.err and not (tmp_path / "hf").exists()


@pytest.mark.parametrize("to", ["hf-vit", "hf-dinov2"])
def test_g04_a_pooler_that_is_not_there_is_never_made_up(to: str, tmp_path: Path) -> None:
    state = rand_t(head=False)
    if to == "hf-dinov2":
        state |= {f"blocks.{i}.ls{j}.gamma": draw(DIM) for i in (0, 1) for j in (1, 2)}
        state["mask_token"] = draw(1, DIM)
    suffix = "pth" if to == "hf-dinov2" else "safetensors"
    answer = vitconv("convert", save(tmp_path / f"s.{suffix}", state), tmp_path / "o.safetensors", "--to", to)
    if answer.code == 0:
        assert not [k for k in tensors(tmp_path / "o.safetensors") if "pooler" in k]
    else:
        assert answer.code == 3 and "pool" in answer.err


@pytest.mark.parametrize("width", [64, 33])
def test_g07_a_head_of_another_width_is_refused_with_both_widths(width: int, tmp_path: Path) -> None:
    state = {**rand_t(), "head.weight": draw(5, width)}
    answer = vitconv("convert", save(tmp_path / "s.safetensors", state), tmp_path / "o.safetensors", "--to", "hf-vit")
    assert answer.code in (1, 3)
    assert f"head.weight has {width} where that gives 32" in answer.err
    assert not (tmp_path / "o.safetensors").exists()


NAMES = {
    "g and v": ("weight_g", "weight_v"),
    "originals": ("parametrizations.weight.original0", "parametrizations.weight.original1"),
}


@pytest.mark.parametrize("kind", NAMES)
def test_g08_a_head_of_self_distillation_is_left_aside_by_name(kind: str, tmp_path: Path) -> None:
    magnitude, direction = NAMES[kind]
    extra = {f"head.last_layer.{magnitude}": draw(3, 1), f"head.last_layer.{direction}": draw(3, 4)}
    extra |= {"head.mlp.0.weight": draw(8, DIM), "head.mlp.0.bias": draw(8)}
    source = save(tmp_path / "s.pth", {**rand_t(head=False), **extra})
    answer = vitconv("convert", source, tmp_path / "o.safetensors", "--to", "timm")
    assert answer.code == 0, answer.text
    assert f"head.last_layer.{magnitude}" in answer.text
    assert equal(tensors(tmp_path / "o.safetensors"), rand_t(head=False))


def tower(embed: int = 16, prefix: str = "visual.") -> dict[str, torch.Tensor]:
    """Return open_clip's vision tower of the size of T, with a projection to `embed`."""
    state = {"class_embedding": draw(DIM), "positional_embedding": draw(17, DIM), "proj": draw(DIM, embed)}
    state["conv1.weight"] = draw(DIM, 3, 4, 4)
    norms = ["ln_pre", "ln_post"]
    for i in range(2):
        block = f"transformer.resblocks.{i}"
        state |= {f"{block}.attn.in_proj_weight": draw(96, DIM, seed=i), f"{block}.attn.in_proj_bias": draw(96, seed=i)}
        for name, rows, cols in (("attn.out_proj", DIM, DIM), ("mlp.c_fc", 128, DIM), ("mlp.c_proj", DIM, 128)):
            state |= {f"{block}.{name}.weight": draw(rows, cols, seed=i), f"{block}.{name}.bias": draw(rows, seed=i)}
        norms += [f"{block}.ln_1", f"{block}.ln_2"]
    for j, name in enumerate(norms):
        state |= {f"{name}.weight": 1 + draw(DIM, seed=j), f"{name}.bias": draw(DIM, seed=j + 50)}
    return {prefix + k: v for k, v in state.items()}


@pytest.mark.parametrize("embed", [16, 48])
def test_g10_width_and_embedding_are_both_said(embed: int, tmp_path: Path) -> None:
    facts = vitconv("inspect", save(tmp_path / "s.safetensors", tower(embed)), "--json").json["facts"]
    assert (facts["width"], facts["classes"]) == (32, embed)
    # A projection that no layout knows of is named, not passed over.
    answer = vitconv("inspect", save(tmp_path / "t.safetensors", {**rand_t(head=False), "proj": draw(32, 16)}))
    assert answer.code == 1
    assert "unknown here: proj" in answer.text


def test_g11_a_network_with_a_head_refuses_weights_without_one(tmp_path: Path) -> None:
    pytest.importorskip("torchvision")
    source = save(tmp_path / "s.safetensors", rand_t(head=False))
    sets = ("image_size=16", "patch_size=4", "num_layers=2", "num_heads=4", "hidden_dim=32", "mlp_dim=128",
            "num_classes=5")  # fmt: skip
    told = [x for s in sets for x in ("--set-b", s)]
    target = f"torchvision:VisionTransformer@{source}"
    answer = vitconv("verify", target, target, *(x.replace("-b", "-a") for x in told), *told)
    assert answer.code == 3
    assert "the network (torchvision) needs, and the weights lack: head.weight, head.bias" in answer.text


@pytest.mark.parametrize("embed", [16, 32])
def test_g14_open_clip_to_transformers_and_back_without_a_network(embed: int, tmp_path: Path) -> None:
    source = save(tmp_path / "s.safetensors", tower(embed))
    there, back = tmp_path / "hf.safetensors", tmp_path / "back.safetensors"
    assert vitconv("convert", source, there, "--to", "hf-clip-vision").code == 0
    assert vitconv("convert", there, back, "--to", "open-clip").code == 0
    mine = {k.removeprefix("visual."): v for k, v in tensors(back).items()}
    assert equal(mine, tower(embed, prefix=""))
