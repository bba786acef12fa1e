"""The networks of xformers' own examples: read, carried to timm with the same logits, and back to the same bits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from vitconv.cli.main import run
from vitconv.io.source import open_checkpoint

FOLDER = Path(__file__).parents[2] / "fixtures" / "golden" / "xformers-options"
CASES = sorted(p.stem for p in FOLDER.glob("*example*.pth"))
FACTS = ["--set", "heads=2", "--set", "activation=gelu", "--set", "norm_eps=1e-5", "--set", "grid=3x3"]


def bits(path: Path) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Return {key: (dtype, shape, bytes)} of a checkpoint."""
    with open_checkpoint(path) as c:
        return {t.key: (t.dtype, t.shape, bytes(c.read(t))) for t in c.tensors}


def lightning(case: str, folder: Path) -> Path:
    """Wrap a state dict as the training program of the examples saves it."""
    out = folder / "epoch=3.ckpt"
    state = torch.load(FOLDER / f"{case}.pth", weights_only=True)
    torch.save(
        {
            "epoch": 3,
            "global_step": 9,
            "pytorch-lightning_version": "1.6.0",
            "state_dict": state,
            "hyper_parameters": {"n_head": 2},
        },
        out,
    )
    return out


@pytest.mark.parametrize("case", CASES)
def test_to_timm_with_the_same_logits_and_back(case: str, tmp_path: Path, capsys) -> None:
    timm = pytest.importorskip("timm")
    name, release = case.split("-", 2)[2], case.split("-")[1]
    there, back = tmp_path / "t", tmp_path / "b.safetensors"
    source = lightning(case, tmp_path)
    code = run(["convert", str(source), str(there), "--to", "timm", "--set", f"release={release}", *FACTS])
    assert code == 0, capsys.readouterr().err
    config = json.loads((there / "config.json").read_text())
    model = timm.create_model(config["architecture"], num_classes=config["num_classes"], **config["model_args"])
    model.double().eval()
    model.load_state_dict(load_file(there / "model.safetensors"), strict=True)
    with safe_open(FOLDER / f"{case}.trace.safetensors", "pt") as f:
        x, wanted = f.get_tensor("input"), f.get_tensor("output")
    with torch.no_grad():
        found = model(x)
    assert ((found - wanted).abs().max() / wanted.abs().max()).item() < 1e-12

    sets = ["--set", f"wrapper={name}", "--plain"]
    code = run(["convert", str(there / "model.safetensors"), str(back), "--to", "xformers-fused", *sets])
    assert code == 0, capsys.readouterr().err
    assert bits(back) == bits(FOLDER / f"{case}.pth")


def test_before_0_0_10_the_example_has_no_equal_in_timm(tmp_path: Path, capsys) -> None:
    case = "xformers-0.0.10-early-example-mean"
    order = ["convert", str(FOLDER / f"{case}.pth"), str(tmp_path / "t"), "--to", "timm", *FACTS]
    assert run([*order, "--set", "release=0.0.9"]) == 3
    assert "kv normalised" in capsys.readouterr().err


def test_an_example_is_written_only_where_it_is_asked_for(tmp_path: Path, capsys) -> None:
    case = "xformers-0.0.11-example"
    middle, out = tmp_path / "t.safetensors", tmp_path / "x.safetensors"
    assert run(["convert", str(FOLDER / f"{case}.pth"), str(middle), "--to", "canonical"]) == 0, capsys.readouterr().err
    assert run(["convert", str(middle), str(out), "--to", "xformers-fused"]) == 0, capsys.readouterr().err
    assert "backbone.encoders.0.wrap_att.layer.norm.weight" in bits(out)
