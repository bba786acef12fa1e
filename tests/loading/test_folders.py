"""A folder in, a folder out: the libraries open it with no further word, labels and preprocessing carried along."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from vitconv.cli.main import run

LABELS = {0: "cat", 1: "dog", 2: "cow"}
MEAN, STD = [0.4, 0.5, 0.6], [0.2, 0.3, 0.4]
X = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(2))


def randomised(module: Any) -> Any:
    gen = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, p in module.named_parameters():
            around = 1.0 if "norm" in name and name.endswith("weight") else 0.0
            p.copy_(around + 0.3 * torch.randn(p.shape, generator=gen))
    return module.eval()


@pytest.fixture(scope="module")
def hf(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, torch.Tensor]:
    """Save a ViT of transformers with labels and its image processor; return the folder and its logits."""
    from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessor

    folder = tmp_path_factory.mktemp("hf")
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    config = ViTConfig(**sizes, image_size=16, patch_size=4, layer_norm_eps=1e-6, id2label=LABELS)
    module = randomised(ViTForImageClassification(config))
    module.save_pretrained(folder)
    size = {"height": 16, "width": 16}
    ViTImageProcessor(size=size, image_mean=MEAN, image_std=STD, resample=3).save_pretrained(folder)
    with torch.no_grad():
        return folder, module(X).logits


def logits(module: Any) -> torch.Tensor:
    with torch.no_grad():
        out = module.eval()(X)
    return getattr(out, "logits", out)


def test_timm_opens_it(hf: tuple[Path, torch.Tensor], tmp_path: Path) -> None:
    import timm

    folder, want = hf
    assert run(["convert", str(folder), str(tmp_path / "out")]) == 0
    module = timm.create_model(f"local-dir:{tmp_path / 'out'}", pretrained=True)
    assert torch.allclose(logits(module), want, atol=1e-5)
    assert list(module.pretrained_cfg["label_names"]) == list(LABELS.values())
    assert [list(module.pretrained_cfg[k]) for k in ("mean", "std")] == [MEAN, STD]
    assert module.pretrained_cfg["interpolation"] == "bicubic"
    data = timm.data.resolve_model_data_config(module)
    assert (data["input_size"], list(data["mean"])) == ((3, 16, 16), MEAN)


def test_transformers_opens_the_same_folder(hf: tuple[Path, torch.Tensor], tmp_path: Path) -> None:
    from transformers import AutoImageProcessor, AutoModelForImageClassification

    folder, want = hf
    assert run(["convert", str(folder), str(tmp_path / "out")]) == 0
    module, info = AutoModelForImageClassification.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"]
    assert torch.allclose(logits(module), want, atol=1e-5)
    assert module.config.id2label == LABELS
    assert list(AutoImageProcessor.from_pretrained(tmp_path / "out").data_config["mean"]) == MEAN


@pytest.mark.parametrize("source", ["hf", "timm"])
@pytest.mark.parametrize("to", ["hf-vit", "hf-vit-5"])
def test_from_pretrained_opens_it(hf: tuple[Path, torch.Tensor], tmp_path: Path, source: str, to: str) -> None:
    from transformers import AutoImageProcessor, AutoModelForImageClassification, ViTForImageClassification

    folder, want = hf
    if source == "timm":
        assert run(["convert", str(folder), str(tmp_path / "timm")]) == 0
        folder = tmp_path / "timm"
    assert run(["convert", str(folder), str(tmp_path / "out"), "--to", to]) == 0
    module, info = AutoModelForImageClassification.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert isinstance(module, ViTForImageClassification)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    assert torch.allclose(logits(module), want, atol=1e-5)
    assert module.config.id2label == LABELS
    processor = AutoImageProcessor.from_pretrained(tmp_path / "out")
    assert (list(processor.image_mean), list(processor.image_std), int(processor.resample)) == (MEAN, STD, 3)
    assert (processor.size["height"], processor.size["width"]) == (16, 16)


def test_a_headless_folder(tmp_path: Path) -> None:
    import timm
    from transformers import AutoModel, ViTConfig, ViTModel

    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    config = ViTConfig(**sizes, image_size=16, patch_size=4, layer_norm_eps=1e-6)
    module = randomised(ViTModel(config, add_pooling_layer=False))
    module.save_pretrained(tmp_path / "hf")
    assert run(["convert", str(tmp_path / "hf"), str(tmp_path / "out")]) == 0
    with torch.no_grad():
        want = module(X).last_hidden_state
        theirs = timm.create_model(f"local-dir:{tmp_path / 'out'}", pretrained=True).eval()
        assert torch.allclose(theirs.forward_features(X), want, atol=1e-5)
        assert torch.allclose(AutoModel.from_pretrained(tmp_path / "out").eval()(X).last_hidden_state, want, atol=1e-5)
