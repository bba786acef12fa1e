"""Write what is made from the program itself: the help page `docs/cli.md` and the table of layouts in README.md."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from vitconv.cli.main import cli, verbs


START, END = "<!-- dialects: made by `make docs` -->", "<!-- end -->"


def page() -> str:
    """Return the page: the help of the group, then of each verb, as the terminal shows it."""
    root = click.Context(cli, info_name="vitconv", terminal_width=100, help_option_names=["-h", "--help"])
    parts = [
        "# Command line",
        "Made from the commands themselves by `make docs`; a test fails when it is stale.",
        _block("vitconv", cli.get_help(root)),
    ]
    for verb in verbs():
        command = cli.get_command(root, verb)
        assert command is not None
        parts += _with_children(command, root, verb)
    return "\n\n".join(parts) + "\n"


def _with_children(command: click.Command, parent: click.Context, name: str) -> list[str]:
    context = click.Context(command, info_name=name, parent=parent, terminal_width=100)
    parts = [_block(context.command_path, command.get_help(context))]
    if isinstance(command, click.Group):
        for child in command.list_commands(context):
            found = command.get_command(context, child)
            assert found is not None
            parts += _with_children(found, context, child)
    return parts


def _block(title: str, text: str) -> str:
    return f"## {title}\n\n```text\n{text}\n```"


def dialect_table() -> str:
    """Return the table of layouts, as it stands in README.md."""
    from vitconv.registry import DIALECTS, load_all

    lines = ["| name | what it is | opened by | defined in |", "|---|---|---|---|"]
    for name, d in sorted(load_all(DIALECTS, plugins=False).items()):
        lines.append(f"| `{name}` | {d.title} | {d.library} | {d.source} |")
    return "\n".join(lines)


def readme(text: str) -> str:
    """Return README.md with its table of layouts made anew.

    Raises:
        ValueError: the marks are not there.
    """
    head, start, rest = text.partition(START)
    _, end, tail = rest.partition(END)
    if not start or not end:
        raise ValueError(f"README.md has no {START!r} ... {END!r}")
    return f"{head}{START}\n{dialect_table()}\n{END}{tail}"


def write(root: Path) -> None:
    """Write all that is made, below the folder of the repository."""
    (root / "docs" / "cli.md").write_text(page(), encoding="utf-8")
    path = root / "README.md"
    path.write_text(readme(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
