"""The verb: what it prints, its JSON, its exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vitconv.cli.main import run

DIGITS = Path(__file__).parents[2] / "fixtures" / "digits" / "vit_digits.safetensors"
ONE = ["--inputs", "coloured", "--precision", "fp64"]


def test_same(write, capsys):
    path = write("a")
    assert run(["verify", path, path, *ONE, "--skip", "why"]) == 0
    shown = capsys.readouterr().out
    assert "same: the same function in float64" in shown
    assert "Every tensor accounted for" in shown


def test_differs_as_json(write, capsys):
    path = write("a")
    assert run(["verify", path, "reference", "--set-b", "activation=gelu_tanh", *ONE, "--skip", "why", "--json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert answer["schema"] == "vitconv.verify"
    assert answer["verdict"]["word"] == "differs"
    assert answer["where"]["forward"] == "blocks.0.mlp"
    assert answer["cause"] is None
    stages = {s["key"]: s for s in answer["stages"]}
    assert stages["why"]["why_skipped"] == "asked to"
    assert stages["function"]["rows"][0]["values"]["smallest_threshold"] > 1e-10
    assert "facts" in answer


def test_undecided(write, capsys, tmp_path):
    import shutil

    bare = tmp_path / "bare.safetensors"
    shutil.copy(DIGITS, bare)
    assert run(["verify", str(bare), str(DIGITS)]) == 3
    assert "--set-a heads=12" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--precision", "fp8"], "expected one of fp64"),
        (["--skip", "nothing"], "expected one of accounting"),
        (["--profile", "lenient"], "expected one of default, strict"),
        (["--inputs", "grey"], "expected some of coloured"),
    ],
)
def test_usage(words, said, write, capsys):
    path = write("a")
    assert run(["verify", path, path, *words]) == 2
    assert said in capsys.readouterr().err


def test_saved_runs_are_compared_and_judged(write, capsys, tmp_path):
    path = write("a")
    for name in ("one", "two"):
        assert run(["verify", path, path, *ONE, "--save", str(tmp_path / name)]) == 0
    assert run(["verify", str(tmp_path / "one"), str(tmp_path / "two")]) == 0
    assert run(["verify", "judge", str(tmp_path / "one"), "--profile", "strict"]) == 0
    capsys.readouterr()
    assert run(["verify", "judge", str(tmp_path / "nowhere")]) == 2
    assert "no run.json" in capsys.readouterr().err
