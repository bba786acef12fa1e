"""Files of very many tensors are answered from few of them; a network among so many is read all the same."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from vitconv.conversion import crowd
from vitconv.conversion.convert import convert
from vitconv.conversion.crowd import fewer
from vitconv.conversion.facts import Wishes
from vitconv.conversion.prepare import Order
from vitconv.conversion.recognise import recognise
from vitconv.errors import NotRecognised
from vitconv.io.source import open_checkpoint

DINO = Path(__file__).parents[2] / "fixtures" / "golden" / "dino" / "dino-tiny.pth"


@pytest.fixture
def many(tmp_path: Path) -> Path:
    """Return a file of a network and 1000 tensors more, after names that differ in a number."""
    state = torch.load(DINO, weights_only=True)
    junk = {f"extra.{7 * i}.weight": torch.zeros(1, dtype=torch.float64) for i in range(1000)}
    save_file({**{k: v.contiguous() for k, v in state.items()}, **junk}, tmp_path / "many.safetensors")
    return tmp_path / "many.safetensors"


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crowd, "MANY", 500)


def test_no_more_than_some_of_a_kind_are_looked_at(many: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_checkpoint(many) as c:
        some = fewer(c)
        assert some is not None
        assert len(c.tensors) == 1000 + 30
        assert len(some.tensors) == crowd.ALIKE + 30
    seen: list[int] = []
    detect = recognise.__globals__["detect"]
    monkeypatch.setitem(
        recognise.__globals__, "detect", lambda shapes, *a, **k: (seen.append(len(shapes)), detect(shapes, *a, **k))[1]
    )
    with pytest.raises(NotRecognised, match=r"extra\.\{.* more\}\.weight") as e:
        recognise(many)
    assert "not looked at: 800 more tensors" in str(e.value)
    assert len(str(e.value)) < 1000
    assert max(seen) <= crowd.ALIKE + 30


def test_a_network_among_them_is_read_when_they_are_left_out(many: Path, tmp_path: Path) -> None:
    order = Order("dino", Wishes(drop=("extra.*",)), drop=("extra.*",), plain=True)
    convert(many, tmp_path / "o.safetensors", order)
    with open_checkpoint(tmp_path / "o.safetensors") as c, open_checkpoint(DINO) as own:
        assert {t.key for t in c.tensors} == {t.key for t in own.tensors}


def test_few_or_unlike_tensors_are_all_looked_at(many: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_checkpoint(many) as c:
        monkeypatch.setattr(crowd, "MANY", 2000)
        assert fewer(c) is None
        monkeypatch.setattr(crowd, "MANY", 500)
        monkeypatch.setattr(crowd, "ALIKE", 900)
        assert fewer(c) is None
