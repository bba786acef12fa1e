"""Options that several verbs share: `--json` and `--report`."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Any

import click

# What every generator of random numbers takes, numpy's too.
seed_type = click.IntRange(0, 2**32 - 1)
json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")


class NamedPath(click.Path):
    """A path that is not the empty text, which a variable that is not set leaves behind and which means the folder."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path."""
        if value == "":
            self.fail("the name is empty; for the folder you are in say .", param, ctx)
        return super().convert(value, param, ctx)


def _report_path(ctx: click.Context, param: click.Parameter, value: Path | None) -> Path | None:
    # Before the work, not after: a long run must not end in a report that cannot be written.
    from vitconv.report.output import SUFFIXES

    if value is None:
        return None
    if value.suffix.lower() not in SUFFIXES:
        raise click.BadParameter(
            f"{str(value)!r} ends in none of the known forms: {', '.join(SUFFIXES)}", ctx=ctx, param=param
        )
    if not value.absolute().parent.is_dir():
        raise click.BadParameter(f"the folder {str(value.parent)!r} does not exist", ctx=ctx, param=param)
    if not os.access(value.absolute().parent, os.W_OK):
        raise click.BadParameter(f"the folder {str(value.parent)!r} cannot be written to", ctx=ctx, param=param)
    return value


report_option = click.option(
    "--report",
    "report_path",
    type=click.Path(dir_okay=False, path_type=Path),
    callback=_report_path,
    metavar="FILE",
    help="Also write the report to a file: .html, .json, .md, .txt, or .xml (JUnit).",
)


def command_line() -> str:
    """Return what the user typed, as a shell takes it; "" when the command was not run by `vitconv`."""
    context = click.get_current_context(silent=True)
    arguments = context.find_root().obj if context else None
    return shlex.join(["vitconv", *arguments]) if arguments else ""
