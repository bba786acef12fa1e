"""Names out of files that strangers made: a line break or an escape sequence in one forges no line of any message."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from kit import State, rand_t, save, vitconv

from vitconv.errors import shown
from vitconv.layout.match import collapse

BAD = "x\n  forged: all is well\x1b[31m\r\x00\x9b\u2028y"
_RAW = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028]|^\s*forged", re.MULTILINE)

STATES = {
    "a name more": lambda s: {**s, BAD: torch.ones(3)},
    "in every layer": lambda s: {**s, f"blocks.0.{BAD}": torch.ones(3), f"blocks.1.{BAD}": torch.ones(3)},
    "all names": lambda s: {BAD + k: v for k, v in s.items()},
    "a prefix": lambda s: {f"{BAD}.{k}": v for k, v in s.items()},
    "with and without a wrapper": lambda s: {f"module.{BAD}": torch.ones(2), BAD: torch.zeros(2), **s},
    "branches": lambda s: {BAD: s, f"b{BAD}": rand_t(1)},
    "tied": lambda s: {**s, BAD: s["norm.weight"]},
    "placeholders": lambda s: {BAD + k: torch.zeros(0) if j % 2 else v for j, (k, v) in enumerate(s.items())},
    "unreadable": lambda s: {**s, BAD: torch.eye(3).to_sparse()},
}


def commands(source: Path, good: Path, out: Path) -> list[tuple[object, ...]]:
    to = ("convert", source, out, "--to", "timm")
    return [
        ("inspect", source, "--tensors"),
        to,
        (*to, "--drop", "*forged*"),
        (*to, "--drop", "*nothing*"),
        (*to, "--branch", "none"),
        ("show", source, "timm"),
        ("diff", source, good),
    ]


@pytest.mark.parametrize("make", STATES.values(), ids=STATES)
def test_no_message_is_forged(make, tmp_path: Path) -> None:
    made: State = make(rand_t())
    source, good = save(tmp_path / "s.pth", made), save(tmp_path / "g.pth", rand_t())
    for words in commands(source, good, tmp_path / "out.safetensors"):
        answer = vitconv(*words)
        assert answer.code != 70, answer.err
        found = _RAW.search(answer.text)
        assert found is None, (words[0], answer.text[: found.end() + 40])


def test_the_search_finds_a_forged_line() -> None:
    assert _RAW.search(f"error: unknown {BAD}")
    assert not _RAW.search(f"error:\n  unknown {shown(BAD)}")


@pytest.mark.parametrize("name", ["blocks.0.attn.qkv.weight", "größe", "重み", "a b"])
def test_other_names_stay_as_they_are(name: str) -> None:
    assert shown(name) == name
    assert collapse([name.replace(".0.", ".1."), name]) in ([name], ["blocks.{0..1}.attn.qkv.weight"])
