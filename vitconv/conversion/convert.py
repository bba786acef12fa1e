"""Write a prepared conversion: the checks on values, the file or folder, its configuration, and the proof."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from vitconv import __version__
from vitconv.conversion.beside import configs_for, others_in
from vitconv.conversion.biases import zero_lines
from vitconv.conversion.facts import FACTS
from vitconv.conversion.home import SOURCE, said_of
from vitconv.conversion.kept import OWNER, source_digest
from vitconv.conversion.not_finite import all_lines, norm_lines
from vitconv.conversion.place import check_apart, where
from vitconv.conversion.prepare import ASIDE, RESIDUE, Order, Prepared, prepare
from vitconv.conversion.prove import check_equal, check_sums, derived_lines
from vitconv.conversion.recognise import DIALECT, VARIANT
from vitconv.conversion.stream import Sources, cell_array, outputs
from vitconv.errors import Refused, UsageError
from vitconv.io.atomic import check_space, explain
from vitconv.io.envelope import restore
from vitconv.io.folder import CATALOGUE
from vitconv.io.leftovers import sweep_line
from vitconv.io.sink import INDEX, Out, file_order, write_file, write_sharded
from vitconv.io.tensor import Stored
from vitconv.layout.network import Cell
from vitconv.layout.plan import Plan
from vitconv.record import dataclass

Progress = Callable[[int, int], None]
DISTRIBUTED = "torch-distributed"


@dataclass(frozen=True)
class Done:
    """What a conversion wrote. `silent`: one of several processes did, and another one speaks for all."""

    files: tuple[Path, ...]
    nbytes: int
    elements: int
    configs: tuple[Path, ...] = ()
    notes: tuple[str, ...] = ()
    reread: bool = False
    residue: Path | None = None
    silent: bool = False


def convert(
    src: str | Path, dst: str | Path, order: Order, *, progress: Progress | None = None
) -> tuple[Prepared, Done]:
    """Convert `src` and write `dst`, a `.safetensors` file or a folder that the target's library opens.

    Raises:
        VitconvError: see `prepare`; Refused when tied tensors or constants differ. Nothing is half-written.
    """
    if order.form != "safetensors" or os.environ.get("WORLD_SIZE", "1") != "1":
        from vitconv.conversion.spread import convert_spread

        return convert_spread(src, Path(dst), order, progress=progress)
    prepared = opened(src, Path(dst), order)
    try:
        if order.optimizer:
            from vitconv.conversion.optimizer_write import write_with_optimizer

            return prepared, write_with_optimizer(prepared, Path(dst), progress=progress)
        return prepared, write(prepared, Path(dst), progress=progress)
    finally:
        prepared.close()


def opened(src: str | Path, dst: Path, order: Order) -> Prepared:
    """Plan the conversion that writes `dst`; what timm has no place for is kept in a folder, where no target was named.

    Raises:
        VitconvError: see `prepare`.
    """
    try:
        return prepare(src, order)
    except Refused:
        if order.to or order.residue is not None or order.optimizer or where(dst, sharded=False)[1] is None:
            raise
        from vitconv.conversion.owners import LAYOUTS, TRAINING_FILE, with_training_parts

        found = with_training_parts(src, dst / TRAINING_FILE, order, LAYOUTS["timm"])
        if found is None:
            raise
        return found


def write(prepared: Prepared, dst: Path, *, progress: Progress | None = None) -> Done:
    """Write a prepared conversion; see `convert`."""
    p, order, sources = prepared.plan, prepared.order, prepared.sources
    file, folder = where(dst, sharded=order.shard_bytes is not None)
    home = folder or file.parent
    _check_place(prepared, file, folder)
    swept = sweep_line(home if home.is_dir() else home.parent)
    sums = check_sums(prepared.source.checkpoint, prove=order.prove)
    check_equal(p, sources)
    beside = configs_for(p, prepared.source.extra)
    if order.residue is not None and order.residue.resolve() in {
        home.resolve() / n for n in (file.name, *beside.files)
    }:
        raise UsageError(f"--residue {order.residue} is an output of this conversion; name another file")
    rounding = check_values(p, sources)
    if prepared.source.checkpoint.format == DISTRIBUTED:
        from vitconv.conversion.lost_shards import check_lost

        rounding += check_lost(sources, allowed=order.allow_zeros)
    standing = beside.standing(home)
    inputs = [f for c in (prepared.source.checkpoint, *prepared.extra) for f in c.files]
    check_apart(Path(prepared.source.checkpoint.path), inputs, home, standing if folder else ())
    outs = named(outputs(p, sources, reuse=True), prepared)
    if not order.keep_order:
        outs = file_order(outs)
    # What is kept in the folder itself comes and goes with it.
    inside = folder is not None and order.residue is not None and order.residue.parent == folder
    with _folder_made(folder if inside else None):
        residue = residue_of(prepared, inputs)
        metadata = metadata_of(prepared, residue)
        try:
            files = _weights(prepared, file, folder, outs, metadata, inputs, progress)
        except BaseException:
            if inside and residue is not None:
                residue.unlink(missing_ok=True)
            raise
    # A folder is ours, its configuration too; beside a single file lies what belongs to others.
    configs = beside.write(home, () if folder else standing)
    if order.prove:
        from vitconv.conversion.reread import reread

        reread(folder if len(files) > 1 and folder else files[0], named(outputs(p, sources), prepared), p)
    said = [
        *swept,
        *sums,
        *rounding,
        *derived_lines(p, sources),
        *zero_lines(prepared.source.stored, prepared.source.checkpoint.read),
        *not_finite_lines(prepared),
        *beside.notes,
        *([beside.lacking] if beside.lacking else []),
    ]
    if order.residue is not None and residue is None:
        said.append(f"there was nothing to keep: {order.residue} is not written")
    fate = "was another one and is replaced" if folder else "is another one and was left as it is"
    said += [f"{name} beside the output {fate}" for name in standing]
    if folder and beside.lacking:
        said += [f"{name} was in {folder} before: see that it describes this network" for name in others_in(folder)]
    nbytes = sum(o.nbytes for o in outs)
    return Done(tuple(files), nbytes, prepared.elements, configs, tuple(said), order.prove, residue)


def not_finite_lines(prepared: Prepared) -> list[str]:
    """Tell of NaN and Inf among the weights: with the proof of all elements, else of two norms' weights."""
    source = prepared.source
    if prepared.order.prove:
        return all_lines(source.stored, source.checkpoint.mapped)
    return norm_lines(source.match, source.stored, source.checkpoint.read)


def _weights(
    prepared: Prepared,
    file: Path,
    folder: Path | None,
    outs: list[Out],
    metadata: dict[str, str],
    inputs: list[Path],
    progress: Progress | None,
) -> list[Path]:
    order = prepared.order
    if folder is not None and order.shard_bytes is not None:
        return write_sharded(
            folder, outs, metadata, order.shard_bytes, progress=progress, inputs=inputs, durable=order.sync
        )
    reflink = prepared.source.checkpoint if order.keep_order else None
    with _folder_made(folder):
        write_file(file, outs, metadata, reflink_from=reflink, progress=progress, inputs=inputs, durable=order.sync)
    return [file]


def check_values(p: Plan, sources: Sources) -> list[str]:
    """Count what rounding does to computed tensors, before anything is written; return one line per kind.

    Raises:
        Refused: an edit must not overflow and does.
    """
    if not p.network.made:
        return []
    from vitconv.layout.edits.check import check_before_writing, summary

    return summary(check_before_writing(p.network, lambda cell: cell_array(p, cell, sources)))


def _check_place(prepared: Prepared, file: Path, folder: Path | None) -> None:
    """Check that the output has a place and room there, before the long work."""
    order = prepared.order
    home = folder.absolute().parent if folder is not None else file.absolute().parent
    if not home.is_dir():
        raise UsageError(f"the folder {home} does not exist")
    if folder is not None and order.shard_bytes is None and (folder / INDEX).exists():
        raise Refused(
            f"{folder} holds shards already ({INDEX}), which would stay beside the output; choose a new folder"
        )
    if folder is not None and (folder / CATALOGUE).is_file():
        raise Refused(
            f"{folder} holds a distributed checkpoint already ({CATALOGUE}), which would stay beside the output; choose"
            " a new folder"
        )
    if not order.keep_order:
        check_space(home, prepared.nbytes)


@contextlib.contextmanager
def _folder_made(folder: Path | None) -> Iterator[None]:
    """Make the folder, and take it away again when what goes into it cannot be written."""
    fresh = folder is not None and not folder.exists()
    if folder is not None:
        try:
            folder.mkdir(exist_ok=True)
        except OSError as error:
            raise explain(error, folder) from error
    try:
        yield
    except BaseException:
        if fresh and folder is not None:
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise


def named(outs: list[Out], prepared: Prepared) -> list[Out]:
    """Return the outputs, with the envelope put back around their names where that was asked for."""
    if not prepared.order.keep_envelope:
        return outs
    return [
        Out(restore(o.key, prepared.source.branch.steps, j), o.dtype, o.shape, o.chunks) for j, o in enumerate(outs)
    ]


def metadata_of(prepared: Prepared, residue: Path | None) -> dict[str, str]:
    """Return the metadata of the output: the source's own, then what makes the file say what it is."""
    if prepared.order.plain:
        return {"format": "pt"}
    p, source = prepared.plan, prepared.source
    own = {k: v for k, v in source.checkpoint.metadata.items() if not k.startswith("vitconv")}
    record = {
        "format": "pt",
        "vitconv": __version__,
        DIALECT: p.target.variant.dialect.name,
        VARIANT: json.dumps(p.target.variant.names, separators=(",", ":")),
        FACTS: p.network.facts.to_json(),
        SOURCE: said_of(source),
    }
    if p.network.log:
        record["vitconv.edits"] = json.dumps([a.what for a in p.network.log])
    if residue is not None:
        record[OWNER] = source_digest(prepared.sources)
    elif OWNER in source.checkpoint.metadata and prepared.order.restore is None:
        record[OWNER] = source.checkpoint.metadata[OWNER]
    return {**own, **record}


def residue_of(prepared: Prepared, inputs: list[Path]) -> Path | None:
    """Write what the target has no place for, where that was asked for, and return the file."""
    cells = [c for c in prepared.plan.residue if c not in prepared.dropped]
    path, checkpoint = prepared.order.residue, prepared.source.checkpoint
    aside = prepared.source.aside
    if path is None or not (cells or aside):
        return None

    def chunks(c: Cell) -> Callable[[], Any]:
        return lambda: iter([memoryview(cell_array(prepared.plan, c, prepared.sources)).cast("B")])

    def raw(t: Stored) -> Callable[[], Any]:
        return lambda: iter([checkpoint.read(t)])

    outs = [Out(c.name, c.dtype, c.shape, chunks(c)) for c in cells]
    # What was left aside, such as a text tower, is kept under its own name and is put back by hand.
    keys = [t.key for t in aside]
    names = [t.key if keys.count(t.key) == 1 else ".".join(t.path) for t in aside]
    outs += [Out(f"{ASIDE}{name}", t.dtype, t.shape, raw(t)) for name, t in zip(names, aside, strict=True)]
    owner = {RESIDUE: prepared.source.match.dialect.name, OWNER: source_digest(prepared.sources)}
    write_file(path, outs, {"format": "pt", **owner}, inputs=inputs)
    return path
