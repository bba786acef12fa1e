"""`vitconv inspect --audit`: scheme, trained or not, findings, and what each kind of tensor holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from vitconv.cli.main import run

ROOT = Path(__file__).parents[2]
SMALL = ["--set=dim=64", "--set=heads=4", "--set=depth=3", "--set=image=32", "--set=patch=8", "--set=classes=50"]


def sections(capsys: Any, *words: str) -> dict[str, list[dict[str, Any]]]:
    assert run(["inspect", *words, "--json"]) == 0
    return {s["key"]: s["rows"] for s in json.loads(capsys.readouterr().out)["sections"]}


@pytest.fixture
def drawn(tmp_path: Path, capsys: Any) -> Path:
    path = tmp_path / "drawn.safetensors"
    assert run(["init", "vit_tiny", str(path), "--scheme", "timm-compensated", "--to", "timm", *SMALL]) == 0
    capsys.readouterr()
    return path


def test_the_scheme_is_named_and_the_weights_are_not_trained(drawn: Path, capsys: Any) -> None:
    found = sections(capsys, str(drawn), "--audit")
    answers = {row["what"]: row["answer"] for row in found["audit"]}
    assert answers["state"] == "never trained"
    assert "timm-compensated" in answers["nearest init scheme"]
    assert found["findings"] == []
    q = next(r for r in found["distributions"] if r["tensor"].endswith("attn.q.weight"))
    assert q["count"] == 3
    assert q["std"] == pytest.approx(0.02, rel=0.03)


def test_what_deviates_from_one_scheme_is_named(drawn: Path, capsys: Any) -> None:
    found = sections(capsys, str(drawn), "--against", "timm-2sigma")
    assert {r["finding"] for r in found["findings"]} >= {"deviates"}
    assert any(r["deviates"] for r in found["distributions"] if "mlp" in r["tensor"])


def test_a_planted_fault_is_found(drawn: Path, capsys: Any) -> None:
    from safetensors.torch import load_file, save_file

    state = load_file(drawn)
    state["blocks.1.attn.qkv.weight"].view(-1)[5] = -2.0
    state["blocks.2.mlp.fc1.weight"] = state["blocks.1.mlp.fc1.weight"].clone()
    save_file({k: t.contiguous() for k, t in state.items()}, drawn, metadata={"format": "pt"})
    found = sections(capsys, str(drawn), "--audit")
    assert {r["finding"] for r in found["findings"]} >= {"stray-minus-two", "copied"}
    assert torch.is_tensor(state["pos_embed"])


def test_the_trained_digits(capsys: Any) -> None:
    found = sections(capsys, str(ROOT / "fixtures/digits/vit_digits.safetensors"), "--audit")
    assert found["audit"][0]["answer"] == "trained"


def test_without_audit_torch_is_not_asked_for(drawn: Path, capsys: Any) -> None:
    assert "audit" not in sections(capsys, str(drawn))
