"""The dialects that are tried on a file: those that may fit, and no others are read."""

from __future__ import annotations

import subprocess
import sys

import pytest

from vitconv.conversion import candidates
from vitconv.conversion.candidates import Candidates
from vitconv.errors import UsageError
from vitconv.registry import DIALECTS, names

TIMM = [f"blocks.{i}.attn.proj.weight" for i in range(3)]


def test_only_likely_dialects_are_read() -> None:
    found = [d.name for d in Candidates().likely(TIMM)]
    assert "timm" in found
    assert not {"hf-vit", "torchvision", "xformers"} & set(found)


def test_likely_dialects_alone_are_imported() -> None:
    code = (
        f"import sys\nfrom vitconv.conversion.candidates import Candidates\nCandidates().likely({TIMM})\n"
        "print(sorted(m for m in sys.modules if m.startswith('vitconv.dialects.')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "vitconv.dialects.timm" in done.stdout
    assert "vitconv.dialects.torchvision" not in done.stdout


def test_a_dialect_without_anchors_is_always_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidates, "_anchors", lambda: {"timm": ["nowhere"]})
    found = {d.name for d in Candidates().likely(TIMM)}
    assert found == set(names(DIALECTS)) - {"timm"}


def test_a_wrong_anchor_would_hide_a_dialect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidates, "_anchors", lambda: {n: ["nowhere"] for n in names(DIALECTS)})
    assert Candidates().likely(TIMM) == []


def test_a_told_name_is_the_only_one() -> None:
    told = Candidates("torchvision")
    assert [d.name for d in told.likely(TIMM)] == [d.name for d in told.every()] == ["torchvision"]
    assert told.named("timm") is None
    with pytest.raises(UsageError, match="unknown dialect 'tim'"):
        Candidates("tim").every()


def test_any_is_found_by_name() -> None:
    found = Candidates().named("torchvision")
    assert found is not None
    assert found.name == "torchvision"
    assert Candidates().named("no-such") is None
