"""CLIP's projection has no bias: carried to classifiers that have one as zeros, said, and back only when it is zero."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from vitconv.cli.main import run
from vitconv.conversion.translate import translate
from vitconv.errors import Refused

GOLDEN = Path(__file__).parents[2] / "fixtures" / "golden"
FACTS = {"position": "learned", "grid": "4x4"}
# {layout with a bias: (its key, the edit without which the network has no place in it)}
BIASES = {
    "timm": ("head.bias", ""),
    "timm-eva": ("head.bias", ""),
    "mmpretrain": ("head.layers.head.bias", ""),
    "timm-naflex": ("head.bias", "fold-cls-position"),
    "timm-naflex-eva": ("head.bias", "fold-cls-position"),
}


def clip(keys: bool = True) -> dict[str, Tensor]:
    """Return a tower; with a key bias of zeros where the target has none."""
    weights: dict[str, Tensor] = torch.load(GOLDEN / "clip" / "clip-tower.pth", weights_only=True)
    for i in range(2):
        weights[f"transformer.resblocks.{i}.attn.in_proj_bias"][16:32] *= keys
    return weights


@pytest.mark.parametrize("to", BIASES)
def test_a_bias_of_zeros_is_made_up_and_said(to: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key, edit = BIASES[to]
    weights = clip(keys="eva" not in to)
    save_file(weights, tmp_path / "s.safetensors")
    command = ["convert", str(tmp_path / "s.safetensors"), str(tmp_path / "o.safetensors"), "--from", "clip"]
    command += ["--to", to, "--set", "grid=4x4", *(["--edit", edit] if edit else [])]
    assert run(command) == 0
    assert "made up, exact for the function: head.bias" in capsys.readouterr().out
    there = load_file(tmp_path / "o.safetensors")
    assert there[key].shape == (16,)
    assert not there[key].any()
    assert torch.equal(there[key.replace("bias", "weight")], weights["proj"].T)
    # The same as an edit that is asked for by name, which the file then records.
    assert run([*command, "--edit", "fill:head.bias=0"]) == 0
    assert "outputs unchanged: a bias of zero adds nothing (exact)" in capsys.readouterr().out
    again = load_file(tmp_path / "o.safetensors")
    assert again.keys() == there.keys()
    assert all(torch.equal(again[k], there[k]) for k in there)


@pytest.mark.parametrize("to", ["timm", "timm-eva", "mmpretrain"])
@pytest.mark.parametrize("home", ["clip", "open-clip", "hf-clip-vision"])
def test_and_back_to_the_same_bits(to: str, home: str) -> None:
    weights = translate(clip(keys="eva" not in to), "clip", home)
    there = translate(weights, home, to, facts=FACTS)
    back = translate(there, to, home, facts=FACTS)
    assert back.keys() == weights.keys()
    assert all(torch.equal(back[k], weights[k]) for k in weights)
    there[BIASES[to][0]][3] = 1e-30
    with pytest.raises(Refused, match=r"does not store head\.bias, which is not zero"):
        translate(there, to, home, facts=FACTS)


@pytest.mark.parametrize("to", ["hf-vit", "deit", "torchvision"])
def test_without_a_norm_before_the_blocks_any_classifier_takes_it(to: str, tmp_path: Path) -> None:
    """open_clip's `no_ln_pre`: neither the projection nor the patches have a bias, and both are filled by name."""
    weights: dict[str, Tensor] = torch.load(GOLDEN / "open-clip" / "open-clip-avg.pth", weights_only=True)
    save_file(weights, tmp_path / "s.safetensors")
    command = ["convert", str(tmp_path / "s.safetensors"), str(tmp_path / "o.safetensors"), "--to", to]
    command += ["--set", "pooling=token", "--set", "activation=gelu"]
    assert run(command) == 3
    assert not (tmp_path / "o.safetensors").exists()
    fills = ["--edit", "fill:head.bias=0,embed.patch.bias=0"]
    assert run([*command, *fills]) == 0
    back = ["convert", str(tmp_path / "o.safetensors"), str(tmp_path / "b.safetensors"), "--to", "open-clip"]
    assert run([*back, "--set", "pooling=token"]) == 0
    again = load_file(tmp_path / "b.safetensors")
    assert again.keys() == weights.keys()
    assert all(torch.equal(again[k], weights[k]) for k in weights)
