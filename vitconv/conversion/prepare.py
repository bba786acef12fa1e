"""Settle every detail of a conversion before a byte is read: recognise, edit, plan, prove, ask for consent."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path

from vitconv.conversion.facts import Wishes
from vitconv.conversion.faithful import settled
from vitconv.conversion.home import home_of
from vitconv.conversion.kept import check_owner
from vitconv.conversion.recognise import Recognised, recognise
from vitconv.conversion.stream import Sources, outputs
from vitconv.errors import Lacking, Refused, UsageError
from vitconv.io.source import Checkpoint, open_checkpoint
from vitconv.layout.arith import FLOATS
from vitconv.layout.canonical import template_of
from vitconv.layout.chunks import CHUNKS
from vitconv.layout.dialect import Dialect
from vitconv.layout.encode import explain_residue
from vitconv.layout.match import collapse
from vitconv.layout.network import Applied, Cell, Network, decode
from vitconv.layout.plan import Plan, plan
from vitconv.layout.proof import prove
from vitconv.layout.recipe import dense_view
from vitconv.record import dataclass
from vitconv.registry import DIALECTS, folder_names, load

# In the metadata of a residue file: the dialect of its source.
RESIDUE = "vitconv.residue"
# Before the names of tensors in it that are no part of the network.
ASIDE = "aside:"

HINTS = {
    r"blocks.{i}.ls*": "--edit fold-layer-scale folds LayerScale into the layers before it",
    "coca.*": "--drop 'coca.*' keeps the network before the attentional pooler",
    "pool.dense.*": "a classifier reads what this layer gives and means nothing without it: --edit 'drop:head*'"
    " leaves the classifier out (hf-vit then has a place for the layer); torchvision and vit-jax have both",
    "embed.pos_y": "--edit join-position adds up the positions of rows and columns",
    "embed.pos_cls": "--edit fold-cls-position adds the class row to the class token",
}


@dataclass(frozen=True)
class Order:
    """What a conversion is to do.

    Attributes:
        to: target dialect name; "": timm's, or the layout of timm that has such a network.
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
        faithful: whose facts are taken where only the codes of the author and of the target's library differ.
        sync: wait until the disk has the data before the file takes its name, so that it survives a power cut.
        form: "safetensors", or "dcp" for a folder of torch.distributed.checkpoint.
        allow_zeros: take weights of a distributed checkpoint that are all zeros for what they are.
        optimizer: carry the moments of the optimizer along, from the source or from `optimizer_from`.
        optimizer_from: the file with the optimizer's state, when it is another one.
        optimizer_names: a text file with the names of the parameters in the order of the model, one a line.
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
    faithful: str = "author"
    sync: bool = True
    form: str = "safetensors"
    allow_zeros: bool = False
    optimizer: bool = False
    optimizer_from: Path | None = None
    optimizer_names: Path | None = None


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


def prepare(src: str | Path, order: Order) -> Prepared:
    """Open `src`, plan its conversion and prove the plan; only headers are read.

    Raises:
        VitconvError: as `recognise`, `plan` and `prove`; Refused when something would be lost without consent.
    """
    if not order.to:
        from vitconv.conversion.owners import LAYOUTS, first

        return first(src, order, LAYOUTS["timm"], prepare)
    target: Dialect = load(DIALECTS, order.to)
    source = recognise(src, replace(order.wishes, drop=tuple(order.drop)))
    extra: tuple[Checkpoint, ...] = ()
    put_back: tuple[str, ...] = ()
    try:
        if source.match.dialect.family != target.family:
            raise Refused(
                f"{source.match.dialect.name} is of the {source.match.dialect.family} family and {target.name}"
                f" of the {target.family} family: their networks are not built alike, so no layout says both"
                f"{_relatives(source.match.dialect)}"
            )
        source, whom = settled(source, target, order.faithful)
        network = decode(source.match, source.dtypes, source.facts)
        if order.restore is not None:
            checkpoint = open_checkpoint(order.restore)
            extra = (checkpoint,)
            network = _restored(network, checkpoint)
            said = f"put back from {order.restore}: {', '.join(collapse(t.key for t in checkpoint.tensors))}"
            trust = check_owner(checkpoint.metadata, source.checkpoint.metadata, (str(order.restore), str(src)))
            put_back = (said, trust) if trust else (said,)
        before = set(network.cells)
        network = _edited(network, order)
        # A file that is only rewritten in its own dialect keeps its variant, unless an edit changed what it holds.
        kept = source.match.dialect.name == target.name and set(network.cells) == before
        home = home_of(source, target)
        try:
            p = plan(
                source.match,
                network,
                target,
                wanted={**(source.match.variant.own if kept else {}), **order.choices},
                preferred=home.options,
                given={**home.axes, **order.wishes.axes},
                order=list(source.stored),
                spare=lambda c: order.residue is None and not any(_matches(x, c, source) for x in order.drop),
            )
        except Lacking as e:
            from vitconv.conversion.takers import takers

            raise Lacking(f"{e}{takers(source.match, network)}") from e
        # After the plan: that the target computes another function says more.
        if source.refusals:
            raise Refused(f"{source.checkpoint.path} cannot be carried: {'; '.join(source.refusals)}")
        _check_axes(p, order.wishes.axes)
        dropped = _consented(p, order, source)
        return Prepared(source, p, order, prove(p), dropped, extra, (*whom, *put_back))
    except BaseException:
        for checkpoint in (source.checkpoint, *extra):
            checkpoint.close()
        raise


def _relatives(dialect: Dialect) -> str:
    """Return the layouts that a network of this one can be written in, by their keys alone."""
    if dialect.family == "plain":
        return ""
    model = dialect.name.rpartition("-")[2]
    near = [n for n in folder_names(DIALECTS) if n != dialect.name and n.rpartition("-")[2] == model]
    return f"; say --to {'|'.join(near)}" if near else ""


def _check_axes(p: Plan, given: Mapping[str, int]) -> None:
    """Refuse axes that neither side has: they would be ignored. `h` states a fact, the head count."""
    bound = (*p.source.bound, *p.target.bound)
    used = {x for b in bound for axis in b.rule.axes for x in axis.atoms if x.isalpha()} | {"h", "i"}
    used |= {CHUNKS} if p.target.variant.dialect.chunked else set()
    idle = sorted(given.keys() - used)
    if idle:
        raise UsageError(f"--axis {idle[0]}: no tensor has such an axis; there are {', '.join(sorted(used))}")


def _restored(network: Network, residue: Checkpoint) -> Network:
    if RESIDUE not in residue.metadata:
        raise UsageError(f"{residue.path} is no file that --residue wrote; --restore puts back only those")
    cells = dict(network.cells)
    for t in residue.tensors:
        if t.key.startswith(ASIDE):
            continue
        if t.key in cells:
            raise Refused(f"{residue.path} would put back {t.key}, which the network has already")
        cells[t.key] = Cell(t.key, t.shape, t.dtype, dense_view(f"residue:{t.key}", t.shape))
    return Network(cells, network.made, network.sizes, network.depth, network.facts, network.log, network.open)


def _edited(network: Network, order: Order) -> Network:
    asked = list(order.edits)
    if order.dtype is not None:
        asked.append(f"cast:dtype={_dtype(order.dtype)}")
    if asked:
        from vitconv.layout.edits import apply_all

        network = apply_all(network, asked)
    return network


def _dtype(text: str) -> str:
    if text.upper() not in FLOATS:
        raise UsageError(f"--dtype {text}: expected one of {', '.join(FLOATS)}")
    return text.upper()


def _consented(p: Plan, order: Order, source: Recognised) -> tuple[Cell, ...]:
    """Return the tensors that are lost with consent; refuse when any is lost without."""
    left = source.branch.left
    dropped = tuple(c for c in p.residue if any(_matches(pattern, c, source) for pattern in order.drop))
    idle = [
        x
        for x in order.drop
        if not any(_matches(x, c, source) for c in p.residue) and not any(_leaves(x, key, source) for key in left)
    ]
    if idle:
        would = ", ".join(collapse([*(c.name for c in p.residue), *source.branch.unclaimed])) or "nothing"
        held = any(_matches(idle[0], c, source) for c in p.network.cells.values())
        name = p.target.variant.dialect.name
        how = f"; {name} has a place for it: --edit drop:{idle[0]} leaves it out" if held else ""
        raise UsageError(f"--drop {idle[0]} matches nothing that would be lost; that is: {would}{how}")
    kept = [c for c in p.residue if c not in dropped] if order.residue is None else []
    lost, hints = [], ["keep them beside the output with --residue FILE, or consent to the loss with --drop PATTERN"]
    if kept:
        name = p.target.variant.dialect.name
        lines = explain_residue(p.target.variant.dialect, tuple(c.name for c in kept), p.network.facts.known())
        lost.append(f"{name} has no place for {len(kept)} tensors, which would be lost:\n  " + "\n  ".join(lines))
        hints += [
            h
            for x, h in HINTS.items()
            if any(fnmatch.fnmatch(template_of(c.name), x) for c in kept)
            and (x != "pool.dense.*" or "head.weight" in p.network.cells)
        ]
    if order.residue is None and (beside := unclaimed(source, order.drop)):
        lost.append(beside)
        hints.append("--branch NAME says which part is meant")
    if lost:
        raise Refused("\n".join([*lost, "; ".join(hints)]))
    return dropped


def unclaimed(source: Recognised, drop: Sequence[str]) -> str:
    """Say what is left out beside the network without anybody's consent, in words; "" when nothing is."""
    lost = [key for key in source.branch.unclaimed if not any(_leaves(x, key, source) for x in drop)]
    if not lost:
        return ""
    count = f"{len(source.stored)} of {len(source.stored) + len(source.branch.left)} tensors are read"
    return f"{len(lost)} tensors beside the network ({source.branch.name}: {count}) would be lost:\n  " + ", ".join(
        collapse(lost)[:8]
    )


def _matches(pattern: str, c: Cell, source: Recognised) -> bool:
    stored = source.stored.get(c.view.tensor)
    return any(_fits(pattern, name) for name in (c.name, c.view.tensor, *([stored.key] if stored else ())))


def _leaves(pattern: str, key: str, source: Recognised) -> bool:
    return _fits(pattern, key) or _fits(pattern, source.branch.whole.get(key, key))


def _fits(pattern: str, name: str) -> bool:
    # Here, since few conversions drop anything and the edits take time to import.
    from vitconv.layout.edits.drop import matches

    return matches(pattern, name)


def assumed_lines(p: Plan) -> list[str]:
    """Return one line per fact that the target fixes and the source leaves open, in part or altogether."""
    name_of, lines = p.target.variant.dialect.name, []
    for fact, value in p.target.variant.implies.items():
        if isinstance(value, tuple) or fact in p.network.facts.known():
            continue
        if fact in p.network.open:
            may_be = " or ".join(map(str, p.network.open[fact]))
            lines.append(f"{fact}: taken as {value}, which {name_of} computes; the source's layout may be {may_be}")
        else:
            lines.append(f"{fact}: {name_of} computes {value}; nothing says whether the source does too")
    return lines + _otherwise(p)


def _otherwise(p: Plan) -> list[str]:
    """Return one line per known fact that the target's own code, which reads no configuration, takes otherwise."""
    from vitconv.configs.kinds import writer_for

    variant, known = p.target.variant, p.network.facts.known()
    if writer_for(variant.dialect.name) is not None:
        return []
    takes = {**variant.dialect.usual, **variant.author}
    odd = {k: v for k, v in takes.items() if k in known and known[k] != v and _felt(k, p.network)}
    return [
        f"{fact}: {known[fact]} here, and the code of {variant.dialect.name} takes {value}: build it with {known[fact]}"
        for fact, value in odd.items()
    ]


def _felt(fact: str, network: Network) -> bool:
    """Say whether the network has what a fact speaks of; a table is the same whoever drew it."""
    needs = {"embed_norm_eps": "embed.norm.weight", "pooling": "head.weight", "final_norm_eps": "norm.weight"}
    return fact != "position" and (fact not in needs or needs[fact] in network.cells)


def log_lines(p: Plan) -> list[str]:
    """Return one line per edit."""
    return [_applied(a) for a in p.network.log]


def _applied(a: Applied) -> str:
    kind = "exact" if a.exact else "changes the function"
    return f"{a.edit}: {a.what} ({kind})"
