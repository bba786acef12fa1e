"""The `vitconv` command: find the verb, run it, and turn errors into one message and an exit code.

A verb is a file `vitconv/cli/<verb>.py` with a click command named `command`; what it returns is the exit
code, None being 0. The first line of its docstring is its line in `--help`, which imports no verb. A file
that starts with an underscore, and the two of `_NOT_VERBS`, are no verbs.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shlex
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import click

from vitconv import __version__
from vitconv.errors import VitconvError
from vitconv.registry import summary, unknown

DEBUG = "VITCONV_DEBUG"

# Set by the script of `vitconv completion` while a word is being completed.
COMPLETE = "_VITCONV_COMPLETE"

# Outside the codes of the answers (0..3): what a shell gives for an interrupt and for a closed pipe, and what
# sysexits.h calls an internal software error.
INTERRUPTED, PIPE_CLOSED, CRASHED = 130, 141, 70
NOT_RUN = 3

# Libraries that only some verbs need, and the extra of the package that brings each.
EXTRAS = {
    "numpy": "numpy",
    "torch": "torch",
    "safetensors": "torch",
    "triton": "triton",
    "onnx": "onnx",
    "timm": "peers",
    "torchvision": "peers",
    "transformers": "peers",
}

_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}

_FOLDER = Path(__file__).parent
_NOT_VERBS = frozenset({"main", "docs"})


class VerbGroup(click.Group):
    """A group whose commands are the files of a folder."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """List the verbs by reading the folder."""
        return verbs()

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the one verb that is asked for."""
        if cmd_name not in verbs():
            return None
        command = import_module(f"vitconv.cli.{cmd_name.replace('-', '_')}").command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Name the closest verb where the given one is unknown."""
        if args and not args[0].startswith("-") and args[0] not in verbs():
            ctx.fail(str(unknown("verb", args[0], verbs())))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write one line per verb, from the source and without importing any."""
        with formatter.section("Verbs"):
            formatter.write_dl([(verb, verb_summary(verb)) for verb in verbs()])


def verbs() -> list[str]:
    """List the names of the verbs, sorted."""
    stems = (path.stem for path in _FOLDER.glob("*.py"))
    return sorted(stem.replace("_", "-") for stem in stems if stem[0] != "_" and stem not in _NOT_VERBS)


def verb_summary(verb: str) -> str:
    """Return the verb's line in the help of the group."""
    return summary(_FOLDER / f"{verb.replace('-', '_')}.py")


@click.group(
    cls=VerbGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 done or yes, 1 the answer is no, 2 wrong usage, 3 refused or undecided. "
    "Results go to stdout, progress and warnings to stderr.",
)
@click.version_option(__version__, prog_name="vitconv", message="%(prog)s %(version)s")
def cli() -> None:
    """Move Vision Transformer checkpoints between codebases, and prove that both compute the same."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and leave the process with its exit code."""
    code = run(arguments)
    # Taking the interpreter apart would be a tenth of a conversion's time, and there is nothing left to do. Under
    # torchrun, threads of torch that outlive its process group take the process down meanwhile.
    if "torch" not in sys.modules or os.environ.get("WORLD_SIZE", "1") != "1":
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)
    sys.exit(code)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; an error is one message on stderr, never a traceback.

    Set the environment variable VITCONV_DEBUG to 1 for the traceback of an unexpected error.
    """
    _open_streams()
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = _answer(given)
        # Here, not at exit, where a closed pipe could not be caught.
        sys.stdout.flush()
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return error.exit_code
    except click.ClickException as error:
        _say(error.format_message())
        if isinstance(error, click.UsageError) and error.ctx is not None:
            click.echo(f"See '{error.ctx.command_path} --help'.", err=True)
        return _answered(given, error.format_message(), error.exit_code)
    except VitconvError as error:
        _say(str(error))
        return _answered(given, str(error), error.exit_code)
    except (KeyboardInterrupt, EOFError, click.Abort):
        click.echo("interrupted", err=True)
        return INTERRUPTED
    except BrokenPipeError:
        _silence_stdout()
        return PIPE_CLOSED
    except OSError as error:
        # Of the operating system and with a file, or of a full disk: the user's to mend, not a fault of the program.
        if error.filename is not None:
            message = f"{os.fsdecode(error.filename)}: {error.strerror}"
            _say(message)
            return _answered(given, message, 2)
        if error.errno in _NO_ROOM:
            _silence_stdout()
            _say(f"the result cannot be written: {error.strerror}")
            return 2
        return _crashed(given, error)
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        if library not in EXTRAS:
            return _crashed(given, error)
        extra = EXTRAS[library]
        message = f"this needs {library}, which is not installed here: pip install 'vitconv[{extra}]' brings it"
        _say(message)
        return _answered(given, message, NOT_RUN)
    except Exception as error:
        return _crashed(given, error)
    return code


def _answer(arguments: list[str]) -> int:
    # Not `cli.main`: it makes a closed pipe exit code 1, which here says that the answer is no.
    instruction = os.environ.get(COMPLETE)
    if instruction:
        from click.shell_completion import shell_complete

        return shell_complete(cli, {}, "vitconv", COMPLETE, instruction)
    try:
        # The words as they were typed, for reports: click takes them off the list.
        with cli.make_context("vitconv", list(arguments), obj=tuple(arguments)) as context:
            code = cli.invoke(context)
    except click.exceptions.Exit as end:
        code = end.exit_code
    return code if isinstance(code, int) else 0


def _say(message: str) -> None:
    from vitconv.report.values import printable

    # Messages quote names out of files: they must not drive the terminal. Their own line breaks stay.
    text = "\n".join(printable(line) for line in message.split("\n"))
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    head = "error:" if plain else click.style("error:", fg="red", bold=True)
    click.echo(f"{head} {text}", err=True)


def _answered(given: Sequence[str], message: str, code: int) -> int:
    """Give the error to a program that asked for JSON, too, and return the exit code."""
    if "--json" in given:
        from vitconv.cli._output import emit
        from vitconv.report import Report, Verdict

        word = {1: "not recognised", 2: "wrong usage", CRASHED: "unexpected error"}.get(code, "refused")
        with contextlib.suppress(OSError):
            emit(
                Report(
                    "vitconv.error",
                    "error",
                    verdict=Verdict(word, "fail", message),
                    command=shlex.join(["vitconv", *given]),
                    data={"exit_code": code},
                ),
                as_json=True,
            )
            sys.stdout.flush()
    return code


def _crashed(given: Sequence[str], error: Exception) -> int:
    if os.environ.get(DEBUG) == "1":
        import traceback

        traceback.print_exception(error)
    lines = str(error).splitlines()
    message = (
        f"unexpected {type(error).__name__}{': ' + lines[0] if lines else ''}\n"
        f"This is a fault of vitconv {__version__}. Please report it, with what the same command prints "
        f"under {DEBUG}=1."
    )
    _say(message)
    return _answered(given, message, CRASHED)


def _open_streams() -> None:
    # A stream that was closed at the start (`>&-`) is None, or a number that the next file would get.
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115


def _silence_stdout() -> None:
    # What is left cannot be written; the interpreter would try once more at exit and complain.
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
