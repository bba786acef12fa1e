"""Write what is made from the program itself: the help page `docs/cli.md`, tables, and the anchors of the dialects."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from vitconv.cli.main import cli, verbs

DIALECT_TABLE, EDIT_TABLE, END = (
    "<!-- dialects: made by `make docs` -->",
    "<!-- edits: made by `make docs` -->",
    "<!-- end -->",
)


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


def edit_table() -> str:
    """Return the table of edits, as it stands in docs/convert.md."""
    from vitconv.layout.edits.catalogue import describe_edits

    rows = describe_edits()
    columns = list(rows[0])
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(row[c].replace("|", "\\|") for c in columns) + " |" for row in rows]
    return "\n".join(lines)


def anchor_table() -> str:
    """Return the keys by which the dialects of the folder are told apart before any of them is read, as JSON."""
    import json

    from vitconv.layout.anchor import anchors, general, marks
    from vitconv.registry import DIALECTS, load_all

    every = load_all(DIALECTS, plugins=False).values()
    told = {"anchors": anchors(every), "general": general(every), "marks": marks(every)}
    return json.dumps(told, indent=1, sort_keys=True) + "\n"


def remade(text: str, start: str, table: str) -> str:
    """Return a page with the table between its marks made anew.

    Raises:
        ValueError: the marks are not there.
    """
    head, found, rest = text.partition(start)
    _, end, tail = rest.partition(END)
    if not found or not end:
        raise ValueError(f"the page has no {start!r} ... {END!r}")
    return f"{head}{start}\n{table}\n{END}{tail}"


def pages(root: Path) -> dict[Path, str]:
    """Return {path: text} of all that is made, below the folder of the repository."""
    from vitconv.cli import _dialects_page as dialects

    readme, convert = root / "README.md", root / "docs" / "convert.md"
    return {
        root / "docs" / "cli.md": page(),
        root / "vitconv" / "dialects" / "anchors.json": anchor_table(),
        root / "docs" / "dialects.md": dialects.page(),
        readme: remade(readme.read_text(encoding="utf-8"), DIALECT_TABLE, dialects.dialect_table()),
        convert: remade(convert.read_text(encoding="utf-8"), EDIT_TABLE, edit_table()),
    }


if __name__ == "__main__":
    for path, text in pages(Path(sys.argv[1] if len(sys.argv) > 1 else ".")).items():
        path.write_text(text, encoding="utf-8")
