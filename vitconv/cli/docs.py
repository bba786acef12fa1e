"""Write the help of all verbs as one Markdown page: `python -m vitconv.cli.docs > docs/cli.md`."""

from __future__ import annotations

import sys

import click

from vitconv.cli.main import cli, verbs


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


if __name__ == "__main__":
    sys.stdout.write(page())
