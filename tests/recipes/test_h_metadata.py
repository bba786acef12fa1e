"""H: what a file's own header claims beside its tensors: read when it can be, told when it cannot, never a crash."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from kit import equal, rand_t, tensors, vitconv
from safetensors.torch import save_file


def with_metadata(path: Path, facts: str) -> Path:
    save_file(rand_t(), path, metadata={"format": "pt", "vitconv.dialect": "timm", "vitconv.facts": facts})
    return path


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        ('{"heads": "x"}', "heads='x'"),
        ('{"norm_eps": NaN}', "norm_eps=nan"),
        ('{"of_tomorrow": 3}', "of_tomorrow"),
        ("[1, 2]", "expected a JSON object"),
        ("[" * 100_000, "not JSON"),
        ('{"heads": 4, "x\\n\\u001b": 1}', "x\\n\\x1b"),
    ],
    ids=["a text", "nan", "a name of a later release", "a list", "deep", "control characters"],
)
def test_facts_that_cannot_be_read_are_left_out_and_said(facts: str, says: str, tmp_path: Path) -> None:
    source = with_metadata(tmp_path / "s.safetensors", facts)
    answer = vitconv("convert", source, tmp_path / "o.safetensors", "--to", "timm")
    assert answer.code == 0, answer.text
    assert "warning: the facts in the metadata" in answer.out and says in answer.out
    assert equal(tensors(tmp_path / "o.safetensors"), rand_t())
    inspected = vitconv("inspect", source)
    assert inspected.code == 0 and "are not used" in inspected.out


def test_a_key_of_a_million_letters_is_cut_in_messages(tmp_path: Path) -> None:
    path = tmp_path / "s.safetensors"
    save_file({"k" * 1_000_000: torch.zeros(1)}, path)
    answer = vitconv("convert", path, tmp_path / "o.safetensors")
    assert answer.code == 1
    assert len(answer.err) < 1000 and "kkk..." in answer.err
