"""The page of the first report: every command on it is run as it stands, and finds what the page says."""

from __future__ import annotations

import json
import re
import shlex
from importlib.util import find_spec
from pathlib import Path

import pytest

from vitconv.cli.main import run

PAGE = Path(__file__).parents[2] / "docs" / "first-report.md"
pytestmark = [pytest.mark.slow, pytest.mark.skipif(find_spec("timm") is None, reason="timm is not installed")]

_CLAIM = re.compile(
    r"```sh\n(vitconv verify [^\n]+)\n```\n\n\*\*(same|differs)\*\*(?:: (`[^.]+?), gap (\S+) to (\S+?)\.\s)?"
)


def claims() -> dict[str, tuple[list[str], str, frozenset[str], float, float]]:
    """Return {name: (words, verdict, faults, gap before, gap after)} of every command of the page."""
    found = {}
    for command, word, names, before, after in _CLAIM.findall(PAGE.read_text(encoding="utf-8")):
        faults = frozenset(re.findall(r"`([^`]+)`", names))
        name = f"{word} {' '.join(sorted(faults))}".strip()
        found[name] = (shlex.split(command)[1:], word, faults, float(before or 0), float(after or 0))
    return found


CLAIMS = claims()


def test_every_command_of_the_page_has_a_claim():
    assert len(CLAIMS) == PAGE.read_text(encoding="utf-8").count("```sh") == 6


@pytest.mark.parametrize("name", CLAIMS)
def test_what_the_page_says_holds(name, monkeypatch, capsys):
    words, verdict, faults, before, after = CLAIMS[name]
    monkeypatch.chdir(PAGE.parent / "first-report")
    assert run([*words, "--json"]) == {"same": 0, "differs": 1}[verdict]
    answer = json.loads(capsys.readouterr().out)
    assert answer["verdict"]["word"] == verdict
    if verdict == "same":
        assert answer["cause"] is None
        return
    assert set(answer["cause"]["found"]) == faults
    assert answer["cause"]["proven"]
    assert answer["cause"]["before"] == pytest.approx(before, rel=0.05)
    # What rounding leaves differs from machine to machine.
    assert answer["cause"]["after"] < 100 * after < 1e-9
