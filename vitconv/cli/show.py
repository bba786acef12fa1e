"""Show a dialect's mapping, or what happens to each tensor on the way to another dialect"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from vitconv.cli._options import json_option
from vitconv.cli._wishes import source_options, wishes_from


@click.command("show")
@click.argument("dialect")
@click.argument("to", required=False)
@source_options
@json_option
def command(dialect: str, to: str | None, as_json: bool, **options: Any) -> None:
    """Show the mapping of DIALECT as a table, or, with TO, what becomes of each of its tensors there.

    DIALECT may also be a checkpoint: then sizes are solved, and with TO the table is the plan of the conversion.
    """
    from vitconv.cli._output import emit

    wishes, choices = wishes_from(**options)
    if Path(dialect).exists() and not _is_name(dialect):
        from vitconv.cli._mapping import show_file

        emit(show_file(Path(dialect), to, wishes, choices), as_json=as_json)
        return
    from vitconv.cli._mapping import show_dialect, show_pair

    emit(
        show_pair(dialect, to, wishes, choices) if to else show_dialect(dialect, {**wishes.choices, **choices}),
        as_json=as_json,
    )


def _is_name(text: str) -> bool:
    from vitconv.registry import DIALECTS, folder_names

    return text in folder_names(DIALECTS)
