"""What a program reads of every verb says the command that was typed and what it ran in."""

from __future__ import annotations

import json
import platform
import shlex
from pathlib import Path

import pytest

import vitconv
from vitconv.cli.main import run

FIXTURES = Path(__file__).parents[2] / "fixtures"
DIGITS = str(FIXTURES / "digits" / "vit_digits.safetensors")
TRUNK = str(FIXTURES / "golden" / "xformers" / "xformers-0.0.12-pre-MLP-plain.pth")
VERBS = {
    "list": ["list", "sizes"],
    "show": ["show", "timm", "hf-vit"],
    "show-file": ["show", DIGITS, "hf-vit"],
    "inspect": ["inspect", DIGITS],
    "diff": ["diff", DIGITS, DIGITS],
    "convert": ["convert", DIGITS, "OUT", "--to", "hf-vit", "--plain"],
    "dry-run": ["convert", DIGITS, "OUT", "--to", "hf-vit", "--dry-run"],
    "init": ["init", "vit_tiny_patch16_224", "OUT", "--dry-run"],
    "refused": ["convert", TRUNK, "OUT", "--to", "timm"],
    "usage": ["convert", DIGITS],
}


@pytest.mark.parametrize("name", VERBS)
def test_json_says_command_and_versions(name: str, tmp_path: Path, capsys) -> None:
    given = [str(tmp_path / "o.safetensors") if x == "OUT" else x for x in VERBS[name]]
    run([*given, "--json"])
    document = json.loads(capsys.readouterr().out)
    assert document["command"] == shlex.join(["vitconv", *given, "--json"])
    assert document["environment"]["vitconv"] == vitconv.__version__
    assert document["environment"]["python"] == platform.python_version()


def test_a_page_says_them_and_a_terminal_does_not(tmp_path: Path, capsys) -> None:
    given = ["diff", DIGITS, DIGITS, "--report", str(tmp_path / "r.md")]
    run(given)
    assert "python" not in capsys.readouterr().out
    page = (tmp_path / "r.md").read_text(encoding="utf-8")
    assert platform.python_version() in page
    assert "vitconv diff" in page
