"""Where the output goes: one file or a folder, told by the name, and never a form that is not written."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path

from vitconv.errors import Refused, UsageError

WRITTEN = "a .safetensors file, or a folder"


def where(dst: Path, *, sharded: bool) -> tuple[Path, Path | None]:
    """Return (file, folder): the folder is None when a single file was asked for.

    A name that ends like a file of another form, such as `out.h5`, is no folder unless it is one already; figures after
    a dot (`vit-2.1`) are part of a name.

    Raises:
        UsageError: the name is of a form that is not written, or is taken by a file.
    """
    if dst.is_dir():
        return dst / "model.safetensors", dst
    if dst.suffix == ".safetensors":
        if sharded:
            raise UsageError(f"{dst} is one file; with --shard-size give a folder")
        return dst, None
    if dst.exists():
        raise UsageError(f"{dst} exists and is not a folder; name {WRITTEN}")
    ending = dst.suffix[1:]
    if ending[:1].isalpha() and ending.isalnum() and len(ending) <= 12:
        raise UsageError(
            f"{dst}: a .{ending} file is not written; written are {WRITTEN}: {dst.stem}.safetensors, or {dst.stem}."
            f" For a folder that is called {dst.name}, make it first"
        )
    return dst / "model.safetensors", dst


def check_apart(source: Path, inputs: Iterable[Path], home: Path, replaced: Collection[str]) -> None:
    """Refuse an output that would lie among the files of a folder that is read, or replace its configuration.

    Args:
        source: what was named as the input.
        inputs: the files that are read.
        home: the folder that the output goes into.
        replaced: configurations in it that would become others.

    Raises:
        Refused: so it would.
    """
    if not home.is_dir():
        return
    if source.is_dir() and source.samefile(home):
        raise Refused(
            f"{home} is the input's own folder: the output would lie among its files, and who reads it next would take"
            " one for the other; choose another folder"
        )
    if replaced and any(path.parent.samefile(home) for path in inputs if path.is_file()):
        raise Refused(
            f"{home} holds the input, whose configuration ({', '.join(replaced)}) the output would replace; choose"
            " another folder"
        )
