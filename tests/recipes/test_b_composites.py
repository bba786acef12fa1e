"""B: a vision network inside a larger model of transformers: its configuration is inside too, and nothing is lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from kit import DIM, State, prefixed, rand_t, save, tensors, vitconv
from safetensors.torch import save_file

TOWER = {
    "model_type": "vit",
    "hidden_size": DIM,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 4 * DIM,
    "image_size": 16,
    "patch_size": 4,
    "layer_norm_eps": 1e-5,
    "hidden_act": "quick_gelu",
}
TEXT = {"model_type": "gpt2", "n_embd": 8}


def tower(path: Path, to: str, *more: object) -> State:
    out = path / f"{to}.safetensors"
    answer = vitconv("convert", save(path / "t.pth", rand_t(head=False)), out, "--to", to, *more)
    assert answer.code == 0, answer.text
    return tensors(out)


def folder(path: Path, state: State, config: dict[str, Any]) -> Path:
    path.mkdir()
    save_file(state, path / "model.safetensors")
    (path / "config.json").write_text(json.dumps(config))
    return path


@pytest.mark.parametrize(
    ("prefix", "part", "kind"),
    [
        ("encoder.", "encoder", "vision-encoder-decoder"),
        ("vision_model.", "vision_config", "vision-text-dual-encoder"),
        ("backbone.", "backbone_config", "zoedepth"),
    ],
)
def test_the_configuration_inside_is_the_networks(prefix: str, part: str, kind: str, tmp_path: Path) -> None:
    """DepthAnything/Depth-Anything-V2#192, haotian-liu/LLaVA#1121: eps, heads and activation are in config.json."""
    state = {**prefixed(tower(tmp_path, "hf-vit"), prefix), "decoder.h.0.mlp.weight": torch.randn(5, 7)}
    source = folder(tmp_path / "s", state, {"model_type": kind, part: TOWER, "decoder": TEXT})
    out = tmp_path / "o"
    answer = vitconv("convert", source, out, "--drop", "decoder.*", "--to", "hf-vit")
    assert answer.code == 0, answer.text
    written = json.loads((out / "config.json").read_text())
    assert {key: written[key] for key in TOWER} == TOWER


def test_of_two_vision_networks_inside_neither_is_taken(tmp_path: Path) -> None:
    state = prefixed(tower(tmp_path, "hf-vit"), "encoder.")
    config = {"model_type": "two", "encoder": TOWER, "fov": {**TOWER, "num_attention_heads": 8}}
    out = tmp_path / "o"
    answer = vitconv("convert", folder(tmp_path / "s", state, config), out, "--to", "hf-vit")
    assert answer.code == 0, answer.text
    assert "'two' is not one that is read" in answer.out
    assert not (out / "config.json").exists()


@pytest.mark.parametrize("to", [(), ("--to", "timm")], ids=["default", "timm"])
@pytest.mark.parametrize("prefix", ["backbone.", "pretrained."])
def test_a_mask_token_does_not_hide_what_lies_beside(prefix: str, to: tuple[str, ...], tmp_path: Path) -> None:
    """LiheYoung/Depth-Anything#59: beside a mask token, a whole decoder was left out with a note."""
    trunk = rand_t(head=False) | {"mask_token": torch.randn(1, DIM)}
    trunk |= {f"blocks.{i}.ls{n}.gamma": 1 + 0.3 * torch.randn(DIM) for i in range(2) for n in (1, 2)}
    state = {**prefixed(trunk, prefix), "depth_head.projects.0.weight": torch.randn(6, DIM, 1, 1)}
    source, out = save(tmp_path / "s.pth", state), tmp_path / "o"
    answer = vitconv("convert", source, out, *to)
    assert answer.code == 3, answer.text
    assert "depth_head.projects.0.weight" in answer.err
    assert not out.exists()
    answer = vitconv("convert", source, out, *to, "--drop", "depth_head.*")
    if to:
        assert answer.code == 3, answer.text
        assert "mask token" in answer.err
    else:
        assert answer.code == 0, answer.text
        assert (out / "training.safetensors").exists()


@pytest.mark.parametrize("outside", [True, False])
def test_blocks_that_transformers_wrote_outside_their_network(outside: bool, tmp_path: Path) -> None:
    """transformers 5 writes a ViTMSN with a classifier so."""
    state = {f"vit.{key}": value for key, value in tower(tmp_path, "hf-vit").items() if "pooler" not in key}
    state |= {"classifier.weight": torch.randn(5, DIM), "classifier.bias": torch.randn(5)}
    spelled = {k.replace("vit.encoder.", "encoder.") if outside else k: v for k, v in state.items()}
    source, back = folder(tmp_path / "s", spelled, {**TOWER, "model_type": "vit_msn"}), tmp_path / "o.safetensors"
    answer = vitconv("convert", source, back, "--to", "hf-vit", "--prove")
    assert answer.code == 0, answer.text
    written = tensors(back)
    assert written.keys() == state.keys()
    assert all(torch.equal(written[key], state[key]) for key in state)


def clip_tower(path: Path) -> State:
    state = rand_t(head=False) | {"norm_pre.weight": 1 + torch.randn(DIM) / 4, "norm_pre.bias": torch.randn(DIM)}
    del state["patch_embed.proj.bias"]
    out = path / "clip.safetensors"
    more = ("--set", "position=learned", "--set", "pooling=token", "--set", "activation=gelu")
    answer = vitconv("convert", save(path / "c.pth", state), out, "--to", "hf-clip-vision", *more)
    assert answer.code == 0, answer.text
    return tensors(out)


@pytest.mark.parametrize(
    ("config", "where"),
    [
        ({**TOWER, "model_type": "metaclip_2_vision_model"}, "config.json"),
        ({"model_type": "metaclip_2", "vision_config": {**TOWER, "model_type": "own"}}, "config.json: vision_config"),
        ({"model_type": "two", "text_config": TEXT, "image": {**TOWER, "model_type": "x"}}, "config.json: image"),
    ],
)
@pytest.mark.parametrize("act", ["gelu", "gelu_pytorch_tanh"])
def test_what_a_configuration_of_unknown_kind_states_is_taken(
    act: str, config: dict[str, Any], where: str, tmp_path: Path
) -> None:
    """huggingface/transformers#25787: the keys are CLIP's, and the activation is not."""
    config = json.loads(json.dumps(config).replace("quick_gelu", act))
    source = folder(tmp_path / "s", clip_tower(tmp_path), config)
    answer = vitconv("convert", source, tmp_path / "o", "--to", "hf-clip-vision")
    assert answer.code == 0, answer.text
    assert where in answer.out
    written = json.loads((tmp_path / "o" / "config.json").read_text())
    assert written["hidden_act"] == act
    assert written["layer_norm_eps"] == TOWER["layer_norm_eps"]
    assert written["num_attention_heads"] == 2


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"hidden_act": "sine"}, 3),
        ({"hidden_size": 2 * DIM}, 0),
        ({"patch_size": [4]}, 0),
        ({"layer_norm_eps": "x"}, 0),
    ],
)
def test_a_configuration_of_unknown_kind_that_fits_nothing(change: dict[str, Any], code: int, tmp_path: Path) -> None:
    config = {**TOWER, "model_type": "own", **change}
    source = folder(tmp_path / "s", clip_tower(tmp_path), config)
    answer = vitconv("convert", source, tmp_path / "o", "--to", "hf-clip-vision")
    assert answer.code == code, answer.text
    assert not (tmp_path / "o" / "config.json").exists()
