"""Blocks with two branches of each kind side by side: DeiT's authors' and timm's, one into the other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from vitconv.cli.main import run
from vitconv.conversion.translate import translate
from vitconv.errors import Refused

FOLDER = Path(__file__).parents[2] / "fixtures" / "golden" / "deit"
FACTS = ("heads=2", "norm_eps=1e-6", "final_norm_eps=1e-6", "activation=gelu", "pooling=token", "grid=4x6")
SETS = [word for fact in FACTS for word in ("--set", fact)]


def golden(name: str) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    weights = torch.load(FOLDER / f"{name}.pth", weights_only=True)
    return weights, load_file(FOLDER / f"{name}.trace.safetensors")


def timm_net(**more: Any) -> Any:
    timm = pytest.importorskip("timm")
    sizes = {"img_size": (16, 24), "patch_size": 4, "embed_dim": 16, "depth": 2, "num_heads": 2, "num_classes": 5}
    block = timm.models.vision_transformer.ParallelThingsBlock
    return timm.models.VisionTransformer(**sizes, mlp_ratio=2, block_fn=block, **more).double().eval()


def near(a: Tensor, b: Tensor) -> float:
    return float((a - b).detach().abs().max() / b.detach().abs().max())


@pytest.mark.parametrize(
    ("name", "scale"), [("deit-parallel", 1e-5), ("deit-parallel-plain", None)], ids=["LayerScale", "plain"]
)
def test_timm_computes_what_deit_s_code_did_and_the_way_back_is_exact(
    name: str, scale: float | None, tmp_path: Path
) -> None:
    weights, trace = golden(name)
    there, back = tmp_path / "t.safetensors", tmp_path / "b.safetensors"
    assert run(["convert", str(FOLDER / f"{name}.pth"), str(there), "--to", "timm-parallel", "--prove"]) == 0
    net = timm_net(init_values=scale, no_embed_class=True)
    net.load_state_dict(load_file(there))
    assert near(net(trace["input"]), trace["output"]) < 1e-12
    assert run(["convert", str(there), str(back), "--to", "deit"]) == 0
    again = load_file(back)
    assert again.keys() == weights.keys()
    assert all(torch.equal(v, weights[k]) for k, v in again.items())
    with torch.no_grad():
        net.blocks[1].attns[1].norm.eps = 1e-5
    assert near(net(trace["input"]), trace["output"]) > 1e-9


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", ["deit-parallel", "deit-parallel-plain"], ids=["LayerScale", "plain"])
def test_timm_opens_the_folder_with_no_further_word(name: str, tmp_path: Path) -> None:
    timm = pytest.importorskip("timm")
    weights, trace = golden(name)
    torch.save({k: v.float() for k, v in weights.items()}, tmp_path / "s.pth")
    command = ["convert", str(tmp_path / "s.pth"), str(tmp_path / "out"), "--to", "timm-parallel", *SETS]
    assert run(command) == 0
    net = timm.create_model(f"local-dir:{tmp_path / 'out'}", pretrained=True).double().eval()
    same = timm_net(init_values=None if "plain" in name else 1e-5, no_embed_class=True)
    same.load_state_dict({k: v.double() for k, v in load_file(tmp_path / "out" / "model.safetensors").items()})
    assert torch.equal(net(trace["input"]), same(trace["input"]))
    back = tmp_path / "b.safetensors"
    assert run(["convert", str(tmp_path / "out"), str(back), "--to", "deit"]) == 0
    assert all(torch.equal(v, weights[k].float()) for k, v in load_file(back).items())


@pytest.mark.slow
def test_both_verify_as_one_function(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    there = tmp_path / "t.safetensors"
    assert run(["convert", str(FOLDER / "deit-parallel.pth"), str(there), "--to", "timm-parallel"]) == 0
    sides = [f"reference@{FOLDER / 'deit-parallel.pth'}", f"reference@{there}"]
    told = [word for fact in FACTS for flag in ("--set-a", "--set-b") for word in (flag, fact)]
    assert run(["verify", *sides, "--precision", "fp64", *told]) == 0
    weights = load_file(there)
    weights["blocks.1.ffns.1.ls.gamma"] *= 1.01
    save_file(weights, there)
    assert run(["verify", *sides, "--precision", "fp64", *told]) == 1
    capsys.readouterr()


@pytest.mark.parametrize("target", ["timm", "hf-vit", "dinov2", "torchvision"])
def test_one_branch_has_no_place_for_two(target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "o.safetensors"
    source = str(FOLDER / "deit-parallel-plain.pth")
    assert run(["convert", source, str(out), "--to", target, "--edit", "unfold-cls-position", *SETS]) == 3
    assert "parallel branch" in capsys.readouterr().err
    assert not out.exists()


def with_stem(name: str) -> dict[str, Tensor]:
    """Return weights whose patches come out of hMLP_stem, as models_v2.py names its parts."""
    golden_name = {"deit-3": "deit-3", "parallel": "deit-parallel"}[name]
    weights = {k: v for k, v in golden(golden_name)[0].items() if not k.startswith("patch_embed.")}
    convolutions = {0: (4, 3, 4, 4), 3: (4, 4, 2, 2), 6: (16, 4, 2, 2)}
    for at, shape in convolutions.items():
        weights[f"patch_embed.proj.{at}.weight"] = torch.zeros(shape)
        for part in ("bias", "running_mean"):
            weights[f"patch_embed.proj.{at + (part != 'bias')}.{part}"] = torch.zeros(shape[0])
    return weights


@pytest.mark.parametrize("name", ["deit-3", "parallel"])
def test_a_stem_of_convolutions_is_refused_with_the_reason(name: str) -> None:
    with pytest.raises(Refused, match="hMLP_stem"):
        translate(with_stem(name), None, "canonical")


def test_the_stem_of_convolutions_of_moco_v3_is_refused_too() -> None:
    with pytest.raises(Refused, match="MoCo-v3's ConvStem"):
        translate({**with_stem("deit-3"), "pos_embed": torch.zeros(1, 17, 16)}, "moco-v3", "canonical")


def test_more_than_two_branches_are_refused() -> None:
    weights, _ = golden("deit-parallel")
    there = translate(weights, "deit", "timm-parallel")
    third = {k.replace("attns.1", "attns.2"): v for k, v in there.items() if "attns.1" in k}
    with pytest.raises(Refused, match="more than two parallel branches"):
        translate({**there, **third}, None, "canonical")
