"""Write a conversion as a distributed checkpoint, or by several processes that each write their own shards."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from vitconv.conversion.beside import configs_for, others_in
from vitconv.conversion.place import where
from vitconv.conversion.prove import check_equal, check_sums, derived_lines
from vitconv.conversion.reread import compare
from vitconv.conversion.stream import Sources, outputs
from vitconv.errors import Refused, UsageError
from vitconv.io.atomic import check_space, explain, replacing, sync_folder
from vitconv.io.leftovers import sweep_line, temporary_name
from vitconv.io.sink import INDEX, Out, file_order, index_text, shard_name, share_out, write_file
from vitconv.io.source import open_checkpoint

if TYPE_CHECKING:
    from vitconv.conversion.convert import Done, Progress
    from vitconv.conversion.prepare import Order, Prepared
    from vitconv.conversion.ranks import Ranks
    from vitconv.layout.plan import Plan

T = TypeVar("T")
_SHARD = 5_000_000_000
_HELD = ("*.safetensors", "*.index.json", "pytorch_model*.bin", "*.distcp", ".metadata")


def write_spread(
    prepared: Prepared, dst: Path, ranks: Ranks | None = None, *, progress: Progress | None = None
) -> Done:
    """Write a prepared conversion into a new folder; every process of `ranks` calls this with the same arguments.

    Each process reads and writes only its own tensors. The folder takes its name when all of them are done, so a
    process that fails or is killed leaves nothing under it.

    Raises:
        VitconvError: see `convert`; when it fails on one process, it fails on all.
    """
    from vitconv.conversion.convert import Done, check_values, metadata_of, named, not_finite_lines, residue_of

    together: Callable[[Callable[[], T]], T] = ranks.together if ranks else lambda do: do()
    first = ranks is None or ranks.first
    p, order, sources = prepared.plan, prepared.order, prepared.sources
    sized, several = order.shard_bytes is not None, ranks is not None
    folder = together(lambda: _folder(dst, several=several, optimizer=order.optimizer, form=order.form, sized=sized))
    outs = named(outputs(p, sources), prepared)
    part = ranks.share([o.nbytes for o in outs]) if ranks else list(range(len(outs)))
    mine, own = [outs[j] for j in part], _only(p, {p.targets[j].key for j in part})
    swept = sweep_line(folder.parent) if first else []
    together(lambda: check_space(folder.parent, prepared.nbytes) if first else None)
    together(lambda: check_equal(p, sources) if first else None)
    said = together(lambda: check_values(own, sources))
    said += together(lambda: check_sums(prepared.source.checkpoint, prove=order.prove) if first else [])
    said += together(lambda: derived_lines(p, sources) if first else [])
    said += together(lambda: not_finite_lines(prepared) if first else [])
    said += together(lambda: _check_lost(sources, ranks, allowed=order.allow_zeros))
    beside = configs_for(p, prepared.source.extra)
    inputs = [f for c in (prepared.source.checkpoint, *prepared.extra) for f in c.files]
    residue = together(lambda: residue_of(prepared, inputs) if first else None)
    metadata = metadata_of(prepared, residue)
    staging = temporary_name(folder.absolute())
    staging = ranks.told(staging) if ranks else staging
    together(lambda: _made(staging, folder) if first else None)
    try:
        report = progress if first else None
        if order.form == "dcp":
            said += _dcp(staging, mine, metadata, prepared, ranks, report)
        else:
            together(lambda: _shards(staging, outs, metadata, prepared, ranks, report))
        if order.prove:
            together(lambda: _reread(staging, mine))
        together(lambda: _placed(staging, folder) if first else None)
    except BaseException:
        if first:
            shutil.rmtree(staging, ignore_errors=True)
        raise
    standing = beside.standing(folder) if first else ()
    configs = together(lambda: beside.write(folder, ()) if first else ())
    if ranks:
        said = list(dict.fromkeys(line for lines in ranks.gather(said) for line in lines))
        said.append(f"{ranks.size} processes wrote, each its own part")
    said = [*swept, *said, *beside.notes, *([beside.lacking] if beside.lacking else [])]
    said += [f"{name} beside the output was another one and is replaced" for name in standing]
    if beside.lacking:
        said += [f"{name} was in {folder} before: see that it describes this network" for name in others_in(folder)]
    files = tuple(sorted(f for f in folder.iterdir() if f.suffix in (".distcp", ".safetensors") or f.name == INDEX))
    nbytes = sum(o.nbytes for o in outs)
    return Done(files, nbytes, prepared.elements, configs, tuple(said), order.prove, residue, not first)


def convert_spread(
    src: str | Path, dst: Path, order: Order, *, progress: Progress | None = None
) -> tuple[Prepared, Done]:
    """Convert as one of several processes, or into a distributed checkpoint; see `vitconv.conversion.convert.convert`.

    Raises:
        VitconvError: as there; when it fails on one process, it fails on all.
    """
    from vitconv.conversion.prepare import prepare
    from vitconv.conversion.ranks import ranks_here

    ranks = ranks_here()
    try:
        prepared = ranks.together(lambda: prepare(src, order)) if ranks else prepare(src, order)
        try:
            return prepared, write_spread(prepared, dst, ranks, progress=progress)
        finally:
            prepared.close()
    finally:
        if ranks:
            ranks.close()


def _check_lost(sources: Sources, ranks: Ranks | None, *, allowed: bool) -> list[str]:
    from vitconv.conversion.lost_shards import check_lost

    names = sorted(sources.where)
    if ranks:
        names = [names[j] for j in ranks.share([sources.where[name][1].nbytes for name in names])]
    return check_lost(Sources({name: sources.where[name] for name in names}), allowed=allowed)


def _folder(dst: Path, *, several: bool, optimizer: bool, form: str, sized: bool) -> Path:
    if dst.suffix == ".safetensors" and not dst.is_dir():
        why = "several processes write" if several else "a distributed checkpoint is"
        raise UsageError(f"{dst} is one file; {why} a folder: name one")
    if form == "dcp" and sized:
        raise UsageError(
            "--shard-size is of shards of safetensors; of --format dcp every process writes one piece: leave one out"
        )
    if optimizer and form != "dcp":
        raise UsageError("--optimizer under several processes needs --format dcp")
    _, folder = where(dst, sharded=True)
    assert folder is not None
    if not folder.absolute().parent.is_dir():
        raise UsageError(f"the folder {folder.absolute().parent} does not exist")
    held = sorted({f.name for pattern in _HELD for f in folder.glob(pattern)}) if folder.is_dir() else []
    if held:
        raise Refused(f"{folder} holds weights already ({', '.join(held[:4])}); choose a new folder")
    return folder


def _only(p: Plan, keys: set[str]) -> Plan:
    """Return the plan with the canonical tensors of some targets alone, for checks on values."""
    parts = {name for t in p.targets if t.key in keys for name in t.parts}
    cells = {name: cell for name, cell in p.network.cells.items() if name in parts}
    return dataclasses.replace(p, network=dataclasses.replace(p.network, cells=cells))


def _made(staging: Path, folder: Path) -> None:
    try:
        staging.mkdir()
    except OSError as error:
        raise explain(error, folder) from error


def _dcp(
    staging: Path,
    mine: list[Out],
    metadata: dict[str, str],
    prepared: Prepared,
    ranks: Ranks | None,
    progress: Progress | None,
) -> list[str]:
    """Write the distributed checkpoint, with the optimizer's part where that was asked for; return notes."""
    from vitconv.conversion.optimizer_write import optimizer_of, param_groups, trees
    from vitconv.io.dcp_write import write_dcp

    tensors: dict[tuple[str, ...], Out] = {("model", out.key): out for out in mine}
    values: dict[tuple[str, ...], object] = {}
    if not prepared.order.plain:
        values |= {("vitconv", key): text for key, text in metadata.items()}
    with optimizer_of(prepared) as made:
        if made is not None:
            optim = list(trees(made).items())
            share = ranks.share([out.nbytes for _, out in optim]) if ranks else range(len(optim))
            tensors |= dict(optim[j] for j in share)
            values["optim", "param_groups"] = param_groups(made)
        group = ranks.group if ranks else None
        write_dcp(staging, tensors, values, process_group=group, durable=prepared.order.sync, progress=progress)
        return list(made.notes) if made else []


def _shards(
    staging: Path,
    outs: list[Out],
    metadata: dict[str, str],
    prepared: Prepared,
    ranks: Ranks | None,
    progress: Progress | None,
) -> None:
    """Write this process's shards, and the index if it is the first."""
    size = ranks.size if ranks else 1
    total = sum(o.nbytes for o in outs)
    largest = prepared.order.shard_bytes or min(_SHARD, -(-total // size))
    shards = share_out(file_order(outs), largest)
    names = [shard_name(number, len(shards)) for number in range(1, len(shards) + 1)]
    held = [sum(o.nbytes for o in shard) for shard in shards]
    for j in ranks.share(held) if ranks else range(len(shards)):
        write_file(staging / names[j], file_order(shards[j]), metadata, progress=progress, durable=prepared.order.sync)
    if len(shards) > 1 and (ranks is None or ranks.first):
        weight_map = {o.key: names[j] for j, shard in enumerate(shards) for o in shard}
        with replacing(staging / INDEX, durable=prepared.order.sync) as fd, open(fd, "wb", closefd=False) as stream:
            stream.write(index_text(weight_map, total))


def _reread(staging: Path, mine: list[Out]) -> None:
    """Open what was written, and compare every byte of this process's tensors with the source."""
    with open_checkpoint(staging) as written:
        compare(written, mine)


def _placed(staging: Path, folder: Path) -> None:
    """Give the finished output its name; into a folder that is there the catalogue or index goes last."""
    try:
        if not folder.exists():
            staging.rename(folder)
        else:
            last = {INDEX, ".metadata"}
            for path in sorted(staging.iterdir(), key=lambda path: path.name in last):
                path.rename(folder / path.name)
            staging.rmdir()
    except OSError as error:
        raise explain(error, folder) from error
    sync_folder(folder)
    sync_folder(folder.absolute().parent)
