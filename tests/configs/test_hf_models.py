"""transformers opens the folders that are written, with nothing missing, and computes what the source does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from vitconv.cli.main import run
from vitconv.configs.hf import read
from vitconv.configs.hf_models import KINDS, hidden

SMALL = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "image_size": 16,
    "patch_size": 4,
}
KIND_OF = {
    "dinov2": "Dinov2",
    "dinov2_with_registers": "Dinov2WithRegisters",
    "dinov3_vit": "DINOv3ViT",
    "vit_mae": "ViTMAE",
    "vit_msn": "ViTMSN",
    "beit": "Beit",
    "ijepa": "IJepa",
    "clip_vision_model": "CLIPVision",
    "siglip_vision_model": "SiglipVision",
    "siglip2_vision_model": "Siglip2Vision",
}


@pytest.mark.parametrize("name", KINDS)
def test_silence_means_what_transformers_takes(name: str) -> None:
    import transformers

    config = getattr(transformers, f"{KIND_OF[name]}Config")()
    found = read({"model_type": name}, "config.json")
    assert found.facts.heads == config.num_attention_heads
    assert found.facts.norm_eps == config.layer_norm_eps
    assert found.sizes["d"] == config.hidden_size
    assert found.sizes["p"] == config.patch_size
    assert found.sizes["m"] == getattr(config, "intermediate_size", hidden(config.hidden_size, 4, gated=False))
    assert found.sizes["i"] == config.num_hidden_layers
    assert any("layer_norm_eps is not stated" in note for note in found.notes)


def randomised(model: Any) -> Any:
    g = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=g, dtype=torch.float64) * 0.3 + float("norm" in str(p.shape)))
    return model.double().eval()


def saved(folder: Path, name: str, config: str, **more: Any) -> Any:
    import transformers

    made = getattr(transformers, f"{config}Config")(**{**SMALL, **more})
    model = randomised(getattr(transformers, name)(made).double())
    model.save_pretrained(folder)
    return model


CASES: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "dinov2": ("hf-dinov2", "Dinov2Model", "Dinov2", {"layer_norm_eps": 1e-5}),
    "dinov2-swiglu": ("hf-dinov2", "Dinov2Model", "Dinov2", {"use_swiglu_ffn": True}),
    "registers": ("hf-dinov2-registers", "Dinov2WithRegistersModel", "Dinov2WithRegisters", {"num_register_tokens": 3}),
    "dinov3": ("hf-dinov3", "DINOv3ViTModel", "DINOv3ViT", {"num_register_tokens": 3, "key_bias": True}),
    "dinov3-gated": ("hf-dinov3", "DINOv3ViTModel", "DINOv3ViT", {"use_gated_mlp": True, "hidden_act": "silu"}),
    "beit": (
        "hf-beit",
        "BeitForImageClassification",
        "Beit",
        {"use_relative_position_bias": True, "layer_norm_eps": 1e-6},
    ),
    "ijepa": ("hf-ijepa", "IJepaForImageClassification", "IJepa", {}),
    "clip": ("hf-clip-vision", "CLIPVisionModelWithProjection", "CLIPVision", {"projection_dim": 10}),
    "clip-bare": ("hf-clip-vision", "CLIPVisionModel", "CLIPVision", {"hidden_act": "gelu"}),
    "siglip": ("hf-siglip", "SiglipVisionModel", "SiglipVision", {}),
}


def output(model: Any) -> torch.Tensor:
    x = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    y = model(pixel_values=x)
    for name in ("logits", "image_embeds", "pooler_output", "last_hidden_state"):
        if getattr(y, name, None) is not None:
            found: torch.Tensor = getattr(y, name)
            return found
    raise AssertionError(type(y).__name__)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_a_folder_goes_through_the_canonical_layout_and_opens_again(case: Any, tmp_path: Path) -> None:
    """The second folder is written from canonical tensors and facts alone: its configuration is ours."""
    import transformers

    dialect, name, config, more = case
    model = saved(tmp_path / "a", name, config, **more)
    middle, out = tmp_path / "c.safetensors", tmp_path / "b"
    assert run(["convert", str(tmp_path / "a"), str(middle), "--to", "canonical"]) == 0
    assert run(["convert", str(middle), str(out), "--to", dialect]) == 0
    again, info = getattr(transformers, name).from_pretrained(out, output_loading_info=True, dtype=torch.float64)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert json.loads((out / "config.json").read_text())["layer_norm_eps"] == model.config.layer_norm_eps
    a, b = output(again.eval()), output(model)
    # transformers makes rotary waves in float32 or in float64, by how the network came to be.
    assert float((a - b).detach().abs().max()) < (1e-5 if "dinov3" in dialect else 1e-12)


def test_a_corrupted_mae_decoder_is_read_and_written_as_it_should_be(tmp_path: Path) -> None:
    import transformers

    from vitconv.io.source import open_checkpoint

    decoder = {
        "decoder_hidden_size": 16,
        "decoder_num_hidden_layers": 3,
        "decoder_num_attention_heads": 2,
        "decoder_intermediate_size": 20,
    }
    model = saved(tmp_path / "a", "ViTMAEForPreTraining", "ViTMAE", **decoder)
    with open_checkpoint(tmp_path / "a") as c:
        assert any("decoder.decoder_encoder.layer.0" in t.key for t in c.tensors), "5.24.0 writes these names"
    assert run(["convert", str(tmp_path / "a"), str(tmp_path / "b"), "--to", "hf-mae", "--set", "decoder=layers"]) == 0
    with open_checkpoint(tmp_path / "b") as c:
        assert any("decoder.decoder_layers.2.attention.attention.query.weight" in t.key for t in c.tensors)
    again, info = transformers.ViTMAEForPreTraining.from_pretrained(tmp_path / "b", output_loading_info=True)
    assert not info["missing_keys"]
    assert torch.equal(again.double().decoder.decoder_pred.weight, model.decoder.decoder_pred.weight)


@pytest.mark.parametrize("through", ["hf-mae", "mae"])
def test_the_heads_of_a_mae_decoder_are_those_of_the_source(through: str, tmp_path: Path) -> None:
    import transformers

    decoder = {
        "decoder_hidden_size": 48,  # which the author's 16 heads divide too
        "decoder_num_hidden_layers": 1,
        "decoder_num_attention_heads": 3,
        "decoder_intermediate_size": 20,
    }
    model = saved(tmp_path / "a", "ViTMAEForPreTraining", "ViTMAE", **decoder)
    assert run(["convert", str(tmp_path / "a"), str(tmp_path / "b"), "--to", through]) == 0
    assert run(["convert", str(tmp_path / "b"), str(tmp_path / "c"), "--to", "hf-mae", "--set", "decoder=layers"]) == 0
    again = transformers.ViTMAEForPreTraining.from_pretrained(tmp_path / "c").double()
    images, noise = torch.randn(2, 3, 16, 16).double(), torch.rand(2, 16).double()
    with torch.no_grad():
        a, b = (m.eval()(images, noise=noise).logits for m in (model, again))
    assert float((a - b).abs().max()) < 1e-12


def test_heads_that_do_not_divide_a_mae_decoder_are_refused(tmp_path: Path, capsys) -> None:
    saved(tmp_path / "a", "ViTMAEForPreTraining", "ViTMAE", decoder_hidden_size=16, decoder_num_hidden_layers=1,
          decoder_num_attention_heads=2, decoder_intermediate_size=20)  # fmt: skip
    assert run(["convert", str(tmp_path / "a"), str(tmp_path / "b"), "--to", "hf-mae", "--set", "decoder_heads=3"]) == 0
    assert "decoder_heads=3 does not divide the width 16" in capsys.readouterr().out
    assert not (tmp_path / "b" / "config.json").exists()


@pytest.mark.parametrize("width", [85, 96])
def test_a_gated_mlp_of_another_width_is_no_dinov2(width: int) -> None:
    from vitconv.configs.hf_models_write import write
    from vitconv.configs.request import Inexpressible, Request
    from vitconv.layout.semantics import Semantics

    facts = Semantics(heads=4, norm_eps=1e-6, final_norm_eps=1e-6, activation="silu", norm_placement="pre", grid=(4, 4))
    names = frozenset({"embed.cls", "embed.pos", "blocks.0.mlp.gate.weight", "norm.weight"})
    sizes = {"d": 32, "a": 32, "m": width, "i": 1, "c": 3, "p": 4, "q": 4, "n": 16}
    answer = write(Request("hf-dinov2", sizes, facts, names, frozenset()))
    assert isinstance(answer, Inexpressible)
    assert f"the MLP is {width} wide" in answer.line()
    assert "(88)" in answer.line()


def test_the_vision_tower_of_two_is_read() -> None:
    said = read({"model_type": "clip", "vision_config": {"hidden_size": 32, "num_attention_heads": 4}}, "config.json")
    assert (said.facts.heads, said.facts.activation, said.sizes["d"]) == (4, "quick_gelu", 32)
