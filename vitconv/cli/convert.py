"""Convert a checkpoint to another dialect, not a bit lost and nothing dropped in silence"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vitconv.cli._options import NamedPath, json_option
from vitconv.cli._wishes import bytes_of, check_target_choices, source_options, wishes_from

if TYPE_CHECKING:
    from vitconv.conversion.convert import Done
    from vitconv.conversion.prepare import Prepared
    from vitconv.report import Report


@click.command("convert")
@click.argument("src", type=NamedPath())
@click.argument("dst", type=NamedPath(), required=False)
@click.option(
    "--to",
    default="",
    show_default="timm, or the layout of timm that has such a network",
    metavar="DIALECT",
    help="The dialect to write.",
)
@click.option("--dry-run", is_flag=True, help="Print the plan and write nothing; DST may be left out.")
@click.option("--residue", type=NamedPath(), help="Keep what the target has no place for in this file.")
@click.option("--restore", type=NamedPath(), help="Put such a file back.")
@click.option("--drop", multiple=True, metavar="PATTERN", help="Consent to losing tensors (canonical or source names).")
@click.option(
    "--edit", "edits", multiple=True, metavar="EDIT", help="Change the network on the way: NAME[:key=value,...]."
)
@click.option("--dtype", metavar="DTYPE", help="Round floats to F32, F16, BF16 or F64; refused when values overflow.")
@click.option(
    "--keep-order", is_flag=True, help="Keep the source's tensor order: one byte range, cloned where possible."
)
@click.option("--keep-envelope", is_flag=True, help="Put key prefixes that were taken off (module., ...) back on.")
@click.option(
    "--shard-size", metavar="SIZE", help="Write a folder of shards of at most SIZE (500MB, 2GiB) with an index."
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["safetensors", "dcp"]),
    default="safetensors",
    show_default=True,
    help="dcp: a folder of torch.distributed.checkpoint. Under torchrun every process writes its own shards.",
)
@click.option("--adapter", type=NamedPath(), metavar="PATH", help="Merge a LoRA adapter of PEFT: W + B A * alpha / r.")
@click.option("--optimizer", is_flag=True, help="Carry the optimizer's moments along, into optimizer.pt (by name).")
@click.option("--optimizer-from", type=NamedPath(), metavar="FILE", help="The optimizer's state, if it lies elsewhere.")
@click.option(
    "--optimizer-names", type=NamedPath(), metavar="FILE", help="Names of the parameters in the model's order."
)
@click.option("--allow-zeros", is_flag=True, help="Take all-zero weights of a distributed checkpoint for meant.")
@click.option("--plain", is_flag=True, help="Write no metadata of vitconv, as the reference writer would.")
@click.option(
    "--faithful",
    type=click.Choice(["author", "library"]),
    default="author",
    show_default=True,
    help="Whose eps and activation hold where nothing states them: the author's, or the target library's own.",
)
@click.option("--sync/--no-sync", default=True, show_default=True, help="Wait until the disk has the data (fsync).")
@click.option("--prove", is_flag=True, help="Read the written file again and compare every byte with the source.")
@source_options
@json_option
def command(
    src: Path,
    dst: Path | None,
    to: str,
    dry_run: bool,
    residue: Path | None,
    restore: Path | None,
    drop: tuple[str, ...],
    edits: tuple[str, ...],
    dtype: str | None,
    keep_order: bool,
    keep_envelope: bool,
    shard_size: str | None,
    form: str,
    adapter: Path | None,
    optimizer: bool,
    optimizer_from: Path | None,
    optimizer_names: Path | None,
    allow_zeros: bool,
    plain: bool,
    sync: bool,
    faithful: str,
    prove: bool,
    as_json: bool,
    **options: Any,
) -> int:
    """Convert SRC to the dialect --to and write DST: a .safetensors file, or a folder that the target's library opens.

    A folder written as timm opens in timm (`local-dir:DST`) and in transformers (`from_pretrained`).

    SRC is safetensors (file, shards, folder), a torch .pth/.pt/.bin, a TorchScript archive, .npz, an exported ONNX
    model or a folder of torch.distributed.checkpoint; its dialect is found from names and shapes. The plan is proved
    before a byte is read: every element of the source is used exactly once.

    Exit codes: 0 done, 1 source not recognised, 3 refused: something would be lost, guessed or changed.
    """
    from dataclasses import replace

    from vitconv.cli._output import emit
    from vitconv.conversion.convert import convert, opened
    from vitconv.conversion.prepare import Order, prepare
    from vitconv.errors import UsageError
    from vitconv.report import progress_bar

    wishes, choices = wishes_from(**options)
    if adapter is not None:
        wishes = replace(wishes, adapter=adapter)
    check_target_choices(choices, to or "timm")
    order = Order(
        to=to,
        wishes=wishes,
        choices=choices,
        edits=edits,
        drop=drop,
        residue=residue,
        restore=restore,
        dtype=dtype,
        keep_order=keep_order,
        keep_envelope=keep_envelope,
        shard_bytes=bytes_of(shard_size) if shard_size is not None else None,
        plain=plain,
        prove=prove,
        sync=sync,
        faithful=faithful,
        form=form,
        allow_zeros=allow_zeros,
        optimizer=optimizer or optimizer_from is not None,
        optimizer_from=optimizer_from,
        optimizer_names=optimizer_names,
    )
    if dry_run:
        prepared = prepare(src, order) if dst is None else opened(src, dst, order)
        try:
            emit(planned(prepared, _of_optimizer(prepared)), as_json=as_json)
        finally:
            prepared.close()
        return 0
    if dst is None:
        raise UsageError("DST is missing: the .safetensors file or folder to write (or --dry-run)")
    with progress_bar(f"{src.name} to {to or 'timm'}") as progress:
        prepared, done = convert(src, dst, order, progress=progress)
    if done.silent:
        return 0
    emit(converted(prepared, done), as_json=as_json)
    return 0


def _facts(prepared: Prepared) -> list[Any]:
    from vitconv.report import Fact

    p, source = prepared.plan, prepared.source
    variant = ", ".join(f"{k}={v}" for k, v in source.match.variant.names.items())
    target = ", ".join(f"{k}={v}" for k, v in p.target.variant.names.items())
    return [
        Fact("from", (f"{source.match.dialect.name}" + (f" ({variant})" if variant else ""),)),
        Fact("to", (f"{p.target.variant.dialect.name}" + (f" ({target})" if target else ""),)),
        Fact("tensors", (f"{len(source.stored)} to {len(p.targets)}" + _beside(source.branch.left),)),
        Fact("parameters", (prepared.elements,), "count"),
        Fact("proved", ("each element of the source is used exactly once",)),
    ]


def _beside(left: tuple[str, ...]) -> str:
    return f"; {len(left)} beside the network left out" if left else ""


def _notes(prepared: Prepared) -> list[str]:
    from vitconv.conversion.prepare import assumed_lines, log_lines
    from vitconv.layout.match import collapse

    p = prepared.plan
    notes = [*prepared.source.notes, *prepared.notes, *assumed_lines(p), *log_lines(p)]
    if prepared.order.optimizer:
        notes = [line for line in notes if "training state are present and left out" not in line]
    if p.target.fills:
        notes.append(f"made up, exact for the function: {', '.join(collapse(p.target.fills))}")
    if prepared.dropped:
        notes.append(f"dropped with your consent: {', '.join(collapse(c.name for c in prepared.dropped))}")
    if prepared.source.others:
        notes.append(f"other sets of weights left alone: {', '.join(prepared.source.others)} (--branch)")
    return list(dict.fromkeys(notes))


def _note_section(lines: list[str]) -> tuple[Any, ...]:
    from vitconv.report import Column, Row, Section

    rows = tuple(Row((line,)) for line in lines)
    return (Section("notes", "Noticed", (Column("note", "note"),), rows),) if rows else ()


def _of_optimizer(prepared: Prepared) -> list[str]:
    """Plan the optimizer's moments too, and return what is to be said of them."""
    if not prepared.order.optimizer:
        return []
    from vitconv.conversion.optimizer_write import optimizer_of

    with optimizer_of(prepared) as made:
        return list(made.notes) if made else []


def planned(prepared: Prepared, more: list[str] | None = None) -> Report:
    """Return the report of a dry run; `more` are further lines to be said."""
    from vitconv.cli._mapping import plan_sections
    from vitconv.report import Report

    return Report(
        "vitconv.convert",
        "Plan (nothing is written)",
        facts=tuple(_facts(prepared)),
        sections=(*plan_sections(prepared.plan), *_note_section([*_notes(prepared), *(more or [])])),
    )


def converted(prepared: Prepared, done: Done) -> Report:
    """Return the report of a conversion."""
    from vitconv.report import Fact, Report, Verdict

    facts = _facts(prepared)
    facts += [Fact("data", (done.nbytes,), "bytes")]
    facts += [Fact("wrote", (", ".join(str(f) for f in (*done.files, *done.configs)),))]
    if done.residue:
        facts.append(Fact("residue", (str(done.residue),)))
    if done.reread:
        facts.append(Fact("read again", ("every byte equals the source's",)))
    lines = _notes(prepared)
    lines += done.notes
    return Report(
        "vitconv.convert",
        f"{prepared.source.checkpoint.path} to {prepared.order.to}",
        verdict=Verdict("converted", "ok"),
        facts=tuple(facts),
        sections=_note_section(lines),
    )
