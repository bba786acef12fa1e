"""Shell completion: the script, and what it gets when a word is being typed."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from vitconv.cli.main import run

COMMAND = [sys.executable, "-c", "from vitconv.cli.main import main; main()"]


@pytest.mark.parametrize(
    ("shell", "line"),
    [
        ("bash", "complete -o nosort -F"),
        ("zsh", "#compdef vitconv"),
        ("fish", "complete --no-files --command vitconv"),
    ],
)
def test_the_script_is_of_the_shell(shell: str, line: str, capsys) -> None:
    assert run(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert line in script
    assert "_VITCONV_COMPLETE" in script


@pytest.mark.parametrize(
    ("words", "place", "expected"),
    [
        ("vitconv li", 1, "plain,list"),
        ("vitconv list di", 2, "plain,dialects"),
        ("vitconv list --js", 2, "plain,--json"),
    ],
    ids=["verb", "argument", "option"],
)
def test_a_word_is_completed(words: str, place: int, expected: str) -> None:
    env = {**os.environ, "_VITCONV_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(place)}
    done = subprocess.run(COMMAND, capture_output=True, text=True, check=False, env=env)
    assert done.stdout.splitlines() == [expected]


def test_the_help_keeps_its_lines(capsys) -> None:
    assert run(["completion", "--help"]) == 0
    shown = capsys.readouterr().out
    assert '\n  zsh:  eval "$(vitconv completion zsh)"' in shown
    assert "\\b" not in shown
