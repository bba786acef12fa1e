"""What becomes of what a verb returns or raises: exit codes, one message on stderr, no traceback."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from vitconv import __version__, errors
from vitconv.cli import main

COMMAND = [sys.executable, "-c", "from vitconv.cli.main import main; main()"]


@pytest.fixture
def verb(monkeypatch: pytest.MonkeyPatch):
    """Put a verb `probe` in place that does what the test says."""

    def put(body) -> None:
        command = click.command("probe")(body)
        monkeypatch.setattr(main, "verbs", lambda: ["list", "probe"])
        monkeypatch.setattr(main.VerbGroup, "get_command", lambda self, ctx, name: command)

    return put


def raising(error: BaseException):
    def body() -> None:
        raise error

    return body


@pytest.mark.parametrize(("returned", "code"), [(None, 0), (0, 0), (1, 1), (3, 3)])
def test_what_a_verb_returns_is_the_exit_code(verb, returned: int | None, code: int) -> None:
    verb(lambda: returned)
    assert main.run(["probe"]) == code


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.UsageError("no such axis 'z'"), 2),
        (errors.LayoutError("rule 3 is not one to one"), 2),
        (errors.NotRecognised("closest: timm"), 1),
        (errors.Refused("2 tensors would be lost"), 3),
        (errors.Ambiguous("timm or deit; say --from"), 3),
        (errors.BadFile("header ends after 7 bytes"), 3),
        (click.BadParameter("no"), 2),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_an_error_is_one_message_and_its_exit_code(verb, capsys, error: Exception, code: int) -> None:
    verb(raising(error))
    assert main.run(["probe"]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert str(error) in captured.err
    assert "Traceback" not in captured.err


def test_interrupt_is_130_and_silent(verb, capsys) -> None:
    verb(raising(KeyboardInterrupt()))
    assert main.run(["probe"]) == 130
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.strip() == "interrupted"


def test_operating_system_error_names_the_file(verb, capsys) -> None:
    verb(lambda: Path("no/such/file").read_bytes())
    assert main.run(["probe"]) == 2
    assert capsys.readouterr().err == "error: no/such/file: No such file or directory\n"


def test_unexpected_error_asks_for_a_report(verb, capsys) -> None:
    verb(raising(ZeroDivisionError("division by zero")))
    assert main.run(["probe"]) == main.CRASHED
    captured = capsys.readouterr()
    assert captured.err.startswith("error: unexpected ZeroDivisionError: division by zero\n")
    assert f"vitconv {__version__}" in captured.err
    assert "VITCONV_DEBUG=1" in captured.err
    assert "Traceback" not in captured.err


def test_unexpected_error_shows_the_traceback_when_asked(verb, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITCONV_DEBUG", "1")
    verb(raising(ZeroDivisionError("division by zero")))
    assert main.run(["probe"]) == main.CRASHED
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["lsit"], "error: unknown verb 'lsit'. Did you mean 'list'?"),
        (["list", "dialect"], "error: Invalid value"),
        (["list", "--jsno"], "error: No such option"),
    ],
    ids=["verb", "choice", "option"],
)
def test_wrong_usage_is_2_and_points_to_the_help(capsys, arguments: list[str], expected: str) -> None:
    assert main.run(arguments) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(expected)
    assert "--help'." in captured.err


def test_version() -> None:
    done = subprocess.run([*COMMAND, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"vitconv {__version__}\n"


def test_without_a_verb_the_help_is_shown() -> None:
    done = subprocess.run(COMMAND, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "Usage: vitconv" in done.stderr


@pytest.mark.skipif(os.name == "nt", reason="pipes of a POSIX shell")
def test_a_closed_pipe_is_quiet() -> None:
    process = subprocess.Popen(
        [*COMMAND, "list"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    said = process.stderr.read()
    process.stderr.close()
    assert process.wait() == main.PIPE_CLOSED
    assert said == b""


def test_an_error_cannot_drive_the_terminal(verb, capsys) -> None:
    verb(raising(errors.NotRecognised("unknown here:\n  evil\x1b[31mred\u202e")))
    assert main.run(["probe"]) == 1
    assert capsys.readouterr().err == "error: unknown here:\n  evil\\x1b[31mred\\u202e\n"


@pytest.mark.parametrize(
    ("name", "value", "coloured"), [("NO_COLOR", "1", False), ("TERM", "dumb", False), ("NO_COLOR", "", True)]
)
def test_an_error_has_colour_only_where_it_is_wanted(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, coloured: bool
) -> None:
    said: list[str] = []
    monkeypatch.setattr(main.click, "echo", lambda text, err: said.append(text))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv(name, value)
    main._say("no")
    assert ("\x1b[" in said[0]) == coloured


def test_a_full_disk_is_no_fault_of_the_program(verb, capsys) -> None:
    verb(raising(OSError(errno.ENOSPC, "No space left on device")))
    assert main.run(["probe"]) == 2
    assert capsys.readouterr().err == "error: the result cannot be written: No space left on device\n"


@pytest.mark.skipif(os.name == "nt", reason="redirections of a POSIX shell")
@pytest.mark.parametrize(
    ("redirection", "code"), [(">&-", 0), ("2>&-", 0), (">/dev/full", 2)], ids=["no stdout", "no stderr", "full"]
)
def test_standard_streams_may_be_closed_or_full(redirection: str, code: int) -> None:
    if "full" in redirection and not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    line = " ".join([*(f"'{word}'" for word in COMMAND), "list", "dialects", redirection])
    done = subprocess.run(line, shell=True, capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert "fault" not in done.stderr
    assert "Exception" not in done.stderr


@pytest.mark.parametrize(
    ("error", "code", "word"),
    [
        (errors.NotRecognised("closest: timm\n  evil\x1b[31m"), 1, "not recognised"),
        (errors.UsageError("no such axis"), 2, "wrong usage"),
        (errors.BadFile("header ends after 7 bytes"), 3, "refused"),
        (OSError(errno.EACCES, "Permission denied", "a.pth"), 2, "wrong usage"),
    ],
    ids=["no", "usage", "refused", "system"],
)
def test_an_error_is_json_too_where_json_was_asked_for(monkeypatch, capsys, error, code: int, word: str) -> None:
    @click.command("probe")
    @click.option("--json", "as_json", is_flag=True)
    def command(as_json: bool) -> None:
        raise error

    monkeypatch.setattr(main, "verbs", lambda: ["probe"])
    monkeypatch.setattr(main.VerbGroup, "get_command", lambda self, ctx, name: command)
    assert main.run(["probe", "--json"]) == code
    captured = capsys.readouterr()
    answer = json.loads(captured.out)
    assert (answer["schema"], answer["exit_code"], answer["verdict"]["word"]) == ("vitconv.error", code, word)
    assert answer["verdict"]["sentence"] in (str(error), "a.pth: Permission denied")
    assert captured.err.startswith("error: ")


def test_a_fault_of_the_program_is_json_too(monkeypatch, capsys) -> None:
    @click.command("probe")
    @click.option("--json", "as_json", is_flag=True)
    def command(as_json: bool) -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(main, "verbs", lambda: ["list", "probe"])
    monkeypatch.setattr(main.VerbGroup, "get_command", lambda self, ctx, name: command)
    assert main.run(["probe", "--json"]) == main.CRASHED
    answer = json.loads(capsys.readouterr().out)
    assert answer["verdict"]["word"] == "unexpected error"
    assert answer["exit_code"] == main.CRASHED


def test_an_interrupt_while_modules_are_loaded_is_no_traceback() -> None:
    code = (
        "import importlib.abc, runpy, sys\n"
        "class Stop(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name == 'vitconv.cli.main': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Stop())\n"
        "runpy.run_module('vitconv', run_name='__main__')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


def test_wrong_usage_is_json_too(capsys) -> None:
    assert main.run(["list", "nope", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["verdict"]["word"] == "wrong usage"


@pytest.mark.parametrize(
    "also", ["", "import types; sys.modules['torch'] = types.ModuleType('torch');"], ids=["", "torch"]
)
def test_the_process_ends_with_the_code_and_all_that_was_said(tmp_path: Path, also: str) -> None:
    code = f"import sys; {also} from vitconv.cli.main import main; main({{}})"
    listed = subprocess.run([sys.executable, "-c", code.format(["list", "--json"])], capture_output=True, text=True)
    assert listed.returncode == 0
    assert json.loads(listed.stdout)
    missing = str(tmp_path / "none.safetensors")
    failed = subprocess.run([sys.executable, "-c", code.format(["inspect", missing])], capture_output=True, text=True)
    assert failed.returncode == 2
    assert missing in failed.stderr


@pytest.mark.parametrize(
    ("library", "said"),
    [
        ("torch.nn", "this needs torch, which is not installed here: pip install 'vitconv[torch]'"),
        ("timm", "'vitconv[peers]'"),
    ],
)
def test_a_library_that_is_not_there_is_named_with_the_extra_that_brings_it(verb, capsys, library, said) -> None:
    verb(raising(ModuleNotFoundError(f"No module named {library!r}", name=library)))
    assert main.run(["probe"]) == main.NOT_RUN
    assert said in capsys.readouterr().err
    verb(raising(ModuleNotFoundError("No module named 'mine'", name="mine")))
    assert main.run(["probe"]) == main.CRASHED


def test_every_extra_that_is_named_exists() -> None:
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    extras = text.partition("[project.optional-dependencies]")[2].partition("[project.scripts]")[0]
    assert all(f"\n{extra} = [" in extras for extra in main.EXTRAS.values())
