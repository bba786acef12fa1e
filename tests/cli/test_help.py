"""The help: of the group and of every verb, and the page made of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from vitconv.cli import docs
from vitconv.cli._dialects_page import dialect_table
from vitconv.cli.main import VerbGroup, cli, run, verb_summary, verbs

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-c", "from vitconv.cli.main import main; main()"]


@pytest.mark.parametrize("name", ["docs/cli.md", "README.md", "docs/convert.md", "vitconv/dialects/anchors.json"])
def test_what_is_made_is_not_stale(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    assert text == docs.pages(ROOT)[ROOT / name], f"{name} is stale; run 'make docs'"


def test_a_stale_table_is_seen() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    stale = text.replace("| `timm` |", "| `timn` |")
    assert docs.remade(stale, docs.DIALECT_TABLE, dialect_table()) == text


def test_the_page_changes_with_a_verb(monkeypatch: pytest.MonkeyPatch) -> None:
    before = docs.page()
    command = cli.get_command(click.Context(cli), "list")
    assert command is not None
    monkeypatch.setattr(command, "help", "List something else.")
    assert docs.page() != before


def test_the_group_help_names_every_verb(capsys) -> None:
    assert run(["--help"]) == 0
    shown = capsys.readouterr().out
    for verb in verbs():
        assert f"\n  {verb} " in shown


@pytest.mark.parametrize("verb", verbs())
def test_every_verb_has_its_name_a_summary_and_help_for_each_option(verb: str) -> None:
    command = cli.get_command(click.Context(cli), verb)
    assert command is not None
    assert command.name == verb
    assert verb_summary(verb)
    assert command.help
    unexplained = [
        option.name
        for option in command.params
        if isinstance(option, click.Option) and not option.help and not option.hidden
    ]
    assert unexplained == []


@pytest.mark.parametrize("verb", verbs())
def test_every_verb_shows_its_help(verb: str, capsys) -> None:
    assert run([verb, "--help"]) == 0
    assert capsys.readouterr().out.startswith(f"Usage: vitconv {verb}")


def test_the_group_help_imports_no_verb() -> None:
    code = (
        "import sys\nfrom vitconv.cli.main import run\nrun(['--help'])\n"
        "sys.stderr.write(repr(sorted(name for name in sys.modules if name.startswith('vitconv.'))))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == repr([f"vitconv.{x}" for x in ("cli", "cli.main", "errors", "record", "registry")])


@pytest.mark.skipif(not hasattr(os, "wait4"), reason="needs the processor time of one child")
def test_help_costs_little_more_than_click() -> None:
    # Processor time and a ratio, since the wall clock of a busy machine says nothing: 1.4 measured. An
    # import of numpy would make it 2.7, of torch 40.
    bare = [sys.executable, "-c", "import click"]
    pairs = [(_processor_seconds([*COMMAND, "--help"]), _processor_seconds(bare)) for _ in range(5)]
    assert min(help_ for help_, _ in pairs) < 2 * min(click_ for _, click_ in pairs)


def _processor_seconds(command: list[str]) -> float:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return usage.ru_utime + usage.ru_stime


def test_a_verb_is_a_file_of_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitconv.cli.main._FOLDER", tmp_path)
    for name in ("weigh.py", "print_out.py", "_shared.py", "main.py", "docs.py", "__init__.py", "notes.txt"):
        (tmp_path / name).write_text('"""Do it.\n\nMore."""\n')
    assert VerbGroup().list_commands(click.Context(cli)) == ["print-out", "weigh"]
    assert verb_summary("print-out") == "Do it"
