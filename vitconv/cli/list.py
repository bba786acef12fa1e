"""List what there is: dialects, init schemes, checks, hosts, sizes, faults"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec

import click

from vitconv.cli._options import json_option
from vitconv.cli._output import emit
from vitconv.registry import KINDS, Entry, entries
from vitconv.report import Column, Report, Row, Section

# Kinds that are one table in one module, and not a folder: the module, and the constant that maps names to
# entries.
_TABLES = {
    "sizes": ("vitconv.configs.sizes", "SIZES"),
    "faults": ("vitconv.parity.faults", "FAULTS"),
}
_FOLDERS = {kind.plural: kind for kind in KINDS}


def _found(kind: str) -> list[Entry]:
    if kind in _FOLDERS:
        return list(entries(_FOLDERS[kind]))
    module, constant = _TABLES[kind]
    if not _there(module):
        return []
    table: Mapping[str, object] = getattr(import_module(module), constant)
    return [Entry(name, str(getattr(entry, "summary", "")), "vitconv") for name, entry in table.items()]


def _there(module: str) -> bool:
    package, _, _ = module.rpartition(".")
    return find_spec(package) is not None and find_spec(module) is not None


def _section(kind: str) -> Section:
    found = _found(kind)
    return Section(
        key=kind,
        title=kind,
        columns=(Column("name", "name", "code"), Column("summary", "what it is"), Column("origin", "from")),
        rows=tuple(Row((entry.name, entry.summary, entry.origin)) for entry in found),
        notes=() if found else ("none",),
    )


@click.command("list")
@click.argument("kind", required=False, metavar="[KIND]", type=click.Choice([*_FOLDERS, *_TABLES]))
@json_option
def command(kind: str | None, as_json: bool) -> None:
    """List what there is, of one KIND or of all, entries of other installed packages included.

    KIND is one of: dialects, inits, checks, hosts, sizes, faults.
    """
    kinds = [kind] if kind else [*_FOLDERS, *_TABLES]
    sections = tuple(_section(each) for each in kinds)
    emit(Report(schema="vitconv.list", title="What vitconv knows", sections=sections), as_json=as_json)
