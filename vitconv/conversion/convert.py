"""Convert a checkpoint: recognise, edit, plan, prove, write, and say what was done."""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from vitconv import __version__
from vitconv.conversion.beside import Beside, configs_for
from vitconv.conversion.prove import check_equal, reread
from vitconv.conversion.recognise import DIALECT, FACTS, VARIANT, Recognised, Wishes, recognise
from vitconv.conversion.stream import Sources, cell_array, outputs
from vitconv.errors import Refused, UsageError
from vitconv.io.envelope import restore
from vitconv.io.sink import Out, file_order, write_file, write_sharded
from vitconv.io.source import Checkpoint, open_checkpoint
from vitconv.layout.canonical import template_of
from vitconv.layout.dialect import Dialect
from vitconv.layout.match import collapse
from vitconv.layout.network import Applied, Cell, Network, decode
from vitconv.layout.plan import Plan, plan, prove, residue_lines
from vitconv.layout.recipe import dense_view
from vitconv.registry import DIALECTS, load

RESIDUE = "vitconv.residue"
Progress = Callable[[int, int], None]

HINTS = {
    r"blocks.{i}.ls*": "--edit fold-layer-scale folds LayerScale into the layers before it",
    "embed.pos_cls": "--edit fold-cls-position adds the class row to the class token",
}


@dataclass(frozen=True)
class Order:
    """What a conversion is to do.

    Attributes:
        to: target dialect name.
        wishes: what is known about the source.
        choices: options of the target dialect.
        edits: edits in the order they are applied, as `NAME[:key=value,...]`.
        drop: patterns of canonical names or source keys that may be lost.
        residue: file that keeps what the target has no place for.
        restore: residue file of an earlier conversion, to be put back.
        dtype: float dtype of the output, or None to keep each tensor's own.
        keep_order: write in the order of the source, one byte range where nothing is reordered.
        keep_envelope: put key prefixes that were taken off (such as `module.`) back on.
        shard_bytes: largest shard, or None for one file.
        plain: write no metadata of our own, so that the file equals the reference writer's.
        prove: read the written file again and compare every byte.
        sync: wait until the disk has the data before the file takes its name, so that it survives a power cut.
    """

    to: str
    wishes: Wishes = field(default_factory=Wishes)
    choices: Mapping[str, str] = field(default_factory=dict)
    edits: Sequence[str] = ()
    drop: Sequence[str] = ()
    residue: Path | None = None
    restore: Path | None = None
    dtype: str | None = None
    keep_order: bool = False
    keep_envelope: bool = False
    shard_bytes: int | None = None
    plain: bool = False
    prove: bool = False
    sync: bool = True


@dataclass(frozen=True)
class Prepared:
    """A conversion whose every detail is settled and proved on paper; nothing is read or written yet."""

    source: Recognised
    plan: Plan
    order: Order
    elements: int
    dropped: tuple[Cell, ...]
    extra: tuple[Checkpoint, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def sources(self) -> Sources:
        """Where the plan's tensors are."""
        where = {k: (self.source.checkpoint, t) for k, t in self.source.stored.items()}
        for checkpoint in self.extra:
            where |= {f"residue:{t.key}": (checkpoint, t) for t in checkpoint.tensors}
        return Sources(where)

    @property
    def nbytes(self) -> int:
        """Bytes of tensor data to write."""
        return sum(o.nbytes for o in outputs(self.plan, self.sources))

    def close(self) -> None:
        """Close every file."""
        for checkpoint in (self.source.checkpoint, *self.extra):
            checkpoint.close()


@dataclass(frozen=True)
class Done:
    """What a conversion wrote."""

    files: tuple[Path, ...]
    nbytes: int
    elements: int
    configs: tuple[Path, ...] = ()
    notes: tuple[str, ...] = ()
    reread: bool = False
    residue: Path | None = None


def prepare(src: str | Path, order: Order) -> Prepared:
    """Open `src`, plan its conversion and prove the plan; only headers are read.

    Raises:
        VitconvError: as `recognise`, `plan` and `prove`; Refused when something would be lost without consent.
    """
    target: Dialect = load(DIALECTS, order.to)
    source = recognise(src, replace(order.wishes, drop=tuple(order.drop)))
    extra: tuple[Checkpoint, ...] = ()
    try:
        if source.match.dialect.family != target.family:
            raise Refused(
                f"{source.match.dialect.name} is of the {source.match.dialect.family} family and {target.name}"
                f" of the {target.family} family: their networks are not built alike, so no layout says both"
            )
        if source.refusals:
            raise Refused(f"{source.checkpoint.path} cannot be carried: {'; '.join(source.refusals)}")
        network = decode(source.match, source.dtypes, source.facts)
        if order.restore is not None:
            checkpoint = open_checkpoint(order.restore)
            extra = (checkpoint,)
            network = _restored(network, checkpoint)
        network = _edited(network, order)
        p = plan(
            source.match,
            network,
            target,
            wanted={**_sticky(source, target), **order.choices},
            given=order.wishes.axes,
            order=list(source.stored),
        )
        dropped = _consented(p, order, source.branch.left)
        return Prepared(source, p, order, prove(p), dropped, extra)
    except BaseException:
        for checkpoint in (source.checkpoint, *extra):
            checkpoint.close()
        raise


def _sticky(source: Recognised, target: Dialect) -> dict[str, str]:
    """Keep the variant when a file is only rewritten in its own dialect."""
    return dict(source.match.variant.names) if source.match.dialect.name == target.name else {}


def _restored(network: Network, residue: Checkpoint) -> Network:
    cells = dict(network.cells)
    for t in residue.tensors:
        if t.key in cells:
            raise Refused(f"{residue.path} would put back {t.key}, which the network has already")
        cells[t.key] = Cell(t.key, t.shape, t.dtype, dense_view(f"residue:{t.key}", t.shape))
    return Network(cells, network.made, network.sizes, network.depth, network.facts, network.log, network.open)


def _edited(network: Network, order: Order) -> Network:
    asked = list(order.edits)
    if order.dtype is not None:
        asked.append(f"cast:dtype={order.dtype}")
    if asked:
        from vitconv.layout.edits import apply_all

        network = apply_all(network, asked)
    return network


def _consented(p: Plan, order: Order, left: tuple[str, ...]) -> tuple[Cell, ...]:
    """Return the tensors that are lost with consent; refuse when any is lost without.

    `left` are the source keys that were left out before.
    """
    dropped = tuple(c for c in p.residue if any(_matches(pattern, c) for pattern in order.drop))
    idle = [x for x in order.drop if not any(_matches(x, c) for c in p.residue) and not fnmatch.filter(left, x)]
    if idle:
        would = ", ".join(collapse(c.name for c in p.residue)) or "nothing"
        raise UsageError(f"--drop {idle[0]} matches nothing that would be lost; that is: {would}")
    kept = [c for c in p.residue if c not in dropped]
    if kept and order.residue is None:
        name = p.target.variant.dialect.name
        lines = residue_lines(p)
        hints = [h for pattern, h in HINTS.items() if any(fnmatch.fnmatch(template_of(c.name), pattern) for c in kept)]
        raise Refused(
            f"{name} has no place for {len(kept)} tensors, which would be lost:\n  "
            + "\n  ".join(lines)
            + "\nkeep them beside the output with --residue FILE, or consent to the loss with --drop PATTERN"
            + "".join(f"; {h}" for h in hints)
        )
    return dropped


def _matches(pattern: str, c: Cell) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for name in (c.name, template_of(c.name), c.view.tensor))


def convert(
    src: str | Path, dst: str | Path, order: Order, *, progress: Progress | None = None
) -> tuple[Prepared, Done]:
    """Convert `src` and write `dst`, a `.safetensors` file or a folder that the target's library opens.

    Raises:
        VitconvError: see `prepare`; Refused when tied tensors or constants differ. Nothing is half-written.
    """
    prepared = prepare(src, order)
    try:
        return prepared, write(prepared, Path(dst), progress=progress)
    finally:
        prepared.close()


def write(prepared: Prepared, dst: Path, *, progress: Progress | None = None) -> Done:
    """Write a prepared conversion; see `convert`."""
    p, order, sources = prepared.plan, prepared.order, prepared.sources
    file, folder = _where(dst, order)
    check_equal(p, sources)
    rounding = check_values(p, sources)
    beside = configs_for(p, prepared.source.extra)
    leave = _check_place(beside, file, folder)
    outs = _named(outputs(p, sources), prepared)
    if not order.keep_order:
        outs = file_order(outs)
    metadata = _metadata(prepared)
    inputs = [f for c in (prepared.source.checkpoint, *prepared.extra) for f in c.files]
    residue = _write_residue(prepared, inputs)
    if folder is not None and order.shard_bytes is not None:
        files = write_sharded(
            folder, outs, metadata, order.shard_bytes, progress=progress, inputs=inputs, durable=order.sync
        )
    else:
        if folder is not None:
            folder.mkdir(exist_ok=True)
        reflink = prepared.source.checkpoint if order.keep_order else None
        write_file(file, outs, metadata, reflink_from=reflink, progress=progress, inputs=inputs, durable=order.sync)
        files = [file]
    configs = beside.write(folder or file.absolute().parent, leave)
    if order.prove:
        reread(folder if len(files) > 1 and folder else files[0], outs, p)
    said = [*rounding, *beside.notes, *([beside.lacking] if beside.lacking else [])]
    said += [f"{name} beside the output is another one and was left as it is" for name in leave]
    nbytes = sum(o.nbytes for o in outs)
    return Done(tuple(files), nbytes, prepared.elements, configs, tuple(said), order.prove, residue)


def check_values(p: Plan, sources: Sources) -> list[str]:
    """Count what rounding does to computed tensors, before anything is written; return one line per kind.

    Raises:
        Refused: an edit must not overflow and does.
    """
    if not p.network.made:
        return []
    from vitconv.layout.edits.check import check_before_writing, summary

    return summary(check_before_writing(p.network, lambda cell: cell_array(p, cell, sources)))


def _where(dst: Path, order: Order) -> tuple[Path, Path | None]:
    """Return (file, folder): the folder is None when a single file was asked for."""
    if dst.suffix == ".safetensors" and not dst.is_dir():
        if order.shard_bytes is not None:
            raise UsageError(f"{dst} is one file; with --shard-size give a folder")
        return dst, None
    if dst.suffix in {".pth", ".pt", ".bin", ".npz", ".onnx", ".ckpt"} and not dst.is_dir():
        raise UsageError(f"{dst}: vitconv writes safetensors; name the output {dst.stem}.safetensors, or a folder")
    if dst.exists() and not dst.is_dir():
        raise UsageError(f"{dst} exists and is not a folder; name a .safetensors file or a folder")
    return dst / "model.safetensors", dst


def _check_place(beside: Beside, file: Path, folder: Path | None) -> tuple[str, ...]:
    """Check that the place to write exists; return the configuration files there that are left as they are."""
    home = folder.absolute().parent if folder is not None else file.absolute().parent
    if not home.is_dir():
        raise UsageError(f"the folder {home} does not exist")
    return beside.standing(file.absolute().parent) if folder is None else ()


def _named(outs: list[Out], prepared: Prepared) -> list[Out]:
    if not prepared.order.keep_envelope:
        return outs
    return [
        Out(restore(o.key, prepared.source.branch.steps, j), o.dtype, o.shape, o.chunks) for j, o in enumerate(outs)
    ]


def _metadata(prepared: Prepared) -> dict[str, str]:
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
        "vitconv.source": json.dumps(
            {
                "dialect": source.match.dialect.name,
                "variant": source.match.variant.names,
                "header": source.checkpoint.digest,
                "branch": source.branch.name,
                "envelope": [[s.kind, s.text] for s in source.branch.steps],
            },
            separators=(",", ":"),
        ),
    }
    if p.network.log:
        record["vitconv.edits"] = json.dumps([a.what for a in p.network.log])
    return {**own, **record}


def _write_residue(prepared: Prepared, inputs: list[Path]) -> Path | None:
    cells = [c for c in prepared.plan.residue if c not in prepared.dropped]
    path = prepared.order.residue
    if path is None or not cells:
        return None

    def chunks(c: Cell) -> Callable[[], Any]:
        return lambda: iter([memoryview(cell_array(prepared.plan, c, prepared.sources)).cast("B")])

    outs = [Out(c.name, c.dtype, c.shape, chunks(c)) for c in cells]
    write_file(path, outs, {"format": "pt", RESIDUE: prepared.source.match.dialect.name}, inputs=inputs)
    return path


def assumed_lines(p: Plan) -> list[str]:
    """Return one line per fact that the target fixes and nothing says of the source."""
    known = {**p.network.open, **p.network.facts.known()}
    return [
        f"{name}: {p.target.variant.dialect.name} computes {value}; nothing says whether the source does too"
        for name, value in p.target.variant.implies.items()
        if name not in known and not isinstance(value, tuple)
    ]


def log_lines(p: Plan) -> list[str]:
    """Return one line per edit."""
    return [_applied(a) for a in p.network.log]


def _applied(a: Applied) -> str:
    kind = "exact" if a.exact else "changes the function"
    return f"{a.edit}: {a.what} ({kind})"
