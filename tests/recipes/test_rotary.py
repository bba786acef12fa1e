"""Rotary positions: no tensor of most layouts tells of them, so they are facts that decide what may be written."""

from __future__ import annotations

from pathlib import Path

import pytest
from eva_kit import eva02
from kit import rand_t, save, vitconv

from vitconv.layout.dialect import Dialect
from vitconv.layout.encode import contradictions
from vitconv.registry import DIALECTS, load_all

PLAIN = {n: d for n, d in load_all(DIALECTS, plugins=False).items() if d.family == "plain" and n != "canonical"}
ROTARY = {"dinov3", "hf-dinov3", "hf-dinov3-5", "timm-eva", "eva", "transformer-engine"}
WITHOUT = ("hf-vit", "torchvision", "xformers", "mae", "deit", "dino", "moco-v3", "dinov2", "hf-dinov2", "hf-beit")


def refused(answer, to: str) -> None:
    assert answer.code == 3, answer.text
    assert f"{to} cannot compute this function" in answer.err
    assert "position: rope here" in answer.err


@pytest.mark.parametrize("name", PLAIN)
def test_every_layout_says_whether_it_turns_queries_and_keys(name: str) -> None:
    dialect: Dialect = PLAIN[name]
    cannot = [v for v in dialect.variants if "position" in contradictions(v, {"position": "rope"})]
    assert bool(cannot) == (name not in ROTARY)
    assert len(cannot) in (0, len(dialect.variants))


@pytest.mark.parametrize("to", WITHOUT)
def test_eva02_is_written_to_no_layout_without_rotary_positions(to: str, tmp_path: Path) -> None:
    source = save(tmp_path / "s.pth", eva02(gated=False, head=False))
    refused(vitconv("convert", source, tmp_path / "o.safetensors", "--to", to, "--set", "heads=4"), to)
    assert not (tmp_path / "o.safetensors").exists()


@pytest.mark.parametrize("to", ["timm", "mae", "hf-ijepa"])
def test_a_folder_whose_table_is_gone_is_asked_about(to: str, tmp_path: Path) -> None:
    """Keys of timm without a position table are those of a plain network without positions, and of a rotary one."""
    state = rand_t(cls=False)
    del state["pos_embed"]
    answer = vitconv("convert", save(tmp_path / "s.pth", state), tmp_path / "o.safetensors", "--to", to)
    assert answer.code == 3
    if to == "timm":
        assert "--set position=" in answer.err
