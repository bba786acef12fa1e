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
    found, _ = Candidates().likely(TIMM)
    assert "timm" in {d.name for d in found}
    assert not {"hf-vit", "torchvision", "xformers"} & {d.name for d in found}


def test_special_cases_of_what_fits_are_not_read() -> None:
    keys = [*TIMM, *(a.replace("#", "0") for a in candidates._told("anchors")["dino"])]
    found, special = Candidates().likely(keys)
    assert "dino" in {d.name for d in special(())}
    assert "dino" not in {d.name for d in found}
    assert not [d.name for d in special(["timm"]) if d.under == "timm"]


def test_likely_dialects_alone_are_imported() -> None:
    code = (
        f"import sys\nfrom vitconv.conversion.candidates import Candidates\nCandidates().likely({TIMM})\n"
        "print(sorted(m for m in sys.modules if m.startswith('vitconv.dialects.')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "'vitconv.dialects.timm'" in done.stdout
    assert "'vitconv.dialects.torchvision'" not in done.stdout


def test_a_dialect_without_anchors_is_always_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidates, "_told", {"anchors": {"timm": ["nowhere"]}, "general": {}}.get)
    assert {d.name for d in Candidates().likely(TIMM)[0]} == set(names(DIALECTS)) - {"timm"}


def test_a_wrong_anchor_would_hide_a_dialect(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"anchors": {n: ["nowhere"] for n in names(DIALECTS)}, "general": {}}
    monkeypatch.setattr(candidates, "_told", told.get)
    assert Candidates().likely(TIMM)[0] == []


def test_a_told_name_is_the_only_one() -> None:
    told = Candidates("torchvision")
    assert [d.name for d in told.likely(TIMM)[0]] == [d.name for d in told.every()] == ["torchvision"]
    assert told.named("timm") is None
    with pytest.raises(UsageError, match="unknown dialect 'tim'"):
        Candidates("tim").every()


def test_any_is_found_by_name() -> None:
    found = Candidates().named("torchvision")
    assert found is not None
    assert found.name == "torchvision"
    assert Candidates().named("no-such") is None
