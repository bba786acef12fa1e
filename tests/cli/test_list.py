"""`vitconv list`: all kinds, one kind, JSON, and a kind whose table is a module."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from vitconv.cli import list as verb
from vitconv.cli.main import run
from vitconv.registry import KINDS, Entry


@pytest.fixture
def two_dialects(monkeypatch: pytest.MonkeyPatch) -> None:
    def entries(kind):
        return (
            (Entry("one", "the first", "vitconv"), Entry("two", "", "other 1.0")) if kind.plural == "dialects" else ()
        )

    monkeypatch.setattr(verb, "entries", entries)


def test_one_kind_as_text(two_dialects, capsys) -> None:
    assert run(["list", "dialects"]) == 0
    assert capsys.readouterr().out == (
        "What vitconv knows\n\n"
        "dialects\n"
        "  name  what it is  from\n"
        "  ----  ----------  ---------\n"
        "  one   the first   vitconv\n"
        "  two               other 1.0\n"
    )


def test_all_kinds_as_json(two_dialects, capsys) -> None:
    assert run(["list", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["schema_version"]) == ("vitconv.list", 1)
    assert [section["key"] for section in document["sections"]] == [
        *(kind.plural for kind in KINDS),
        "sizes",
        "faults",
    ]
    assert document["sections"][0]["rows"][1] == {
        "name": "two",
        "summary": "",
        "origin": "other 1.0",
        "status": "info",
        "detail": "",
    }


def test_a_table_of_a_module_is_listed(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    module = SimpleNamespace(SIZES={"tiny": SimpleNamespace(summary="width 192")})
    monkeypatch.setattr(verb, "_there", lambda name: True)
    monkeypatch.setattr(verb, "import_module", lambda name: module)
    assert run(["list", "sizes"]) == 0
    assert "  tiny  width 192   vitconv\n" in capsys.readouterr().out


def test_an_empty_kind_says_so(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(verb, "entries", lambda kind: ())
    assert run(["list", "inits"]) == 0
    assert capsys.readouterr().out == "What vitconv knows\n\ninits\n  none\n"
