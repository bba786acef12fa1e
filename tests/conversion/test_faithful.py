"""Faithful to the author by default, to the library on request, and said in either case."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vitconv.cli.main import run

NPZ = Path(__file__).parents[2] / "fixtures" / "golden" / "npz" / "vit-jax-current.npz"


@pytest.mark.parametrize(
    ("whom", "act", "eps"), [([], "gelu_pytorch_tanh", 1e-6), (["--faithful", "library"], "gelu", 1e-12)]
)
def test_what_the_configuration_says_is_whom_it_follows(
    whom: list[str], act: str, eps: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["convert", str(NPZ), str(tmp_path / "hf"), "--to", "hf-vit", "--set", "grid=4x4", *whom]) == 0
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert (config["hidden_act"], config["layer_norm_eps"]) == (act, eps)
    said = capsys.readouterr().out
    assert "faithful to the library" in said if whom else "faithful to the author" in said
    assert "activation gelu_tanh" in said


def test_what_is_told_is_never_changed(tmp_path: Path) -> None:
    options = ["--set", "grid=4x4", "--set", "activation=quick_gelu", "--faithful", "library"]
    assert run(["convert", str(NPZ), str(tmp_path / "hf"), "--to", "hf-vit", *options]) == 0
    assert json.loads((tmp_path / "hf" / "config.json").read_text())["hidden_act"] == "quick_gelu"
